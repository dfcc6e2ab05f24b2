"""Roles read out of tensors and written back: the right entries, all their bits, and no others."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cases import attention, normal
from identcli.architecture.errors import UserError
from identcli.layouts.places import Layout, Place, holds, read, write

FACTS = attention(heads=4, kv_groups=2)  # 2 layers, E = 9, D = 6, C = 5
H, G, E, D, C = 4, 2, 9, 6, 5


def separate() -> tuple[Layout, dict[str, Tensor]]:
    """Llama's way: a matrix for each role, heads on the rows, W_O on the columns."""
    places = {
        "W_Q": Place("{layer}.q.weight", 0, H, D, D),
        "W_K": Place("{layer}.k.weight", 0, G, D, D),
        "W_V": Place("{layer}.v.weight", 0, G, C, C),
        "W_O": Place("{layer}.o.weight", 0, H, C, C, axis=1),
        "b_Q": Place("{layer}.q.bias", 0, H, D, D),
        "b_K": Place("{layer}.k.bias", 0, G, D, D),
        "b_V": Place("{layer}.v.bias", 0, G, C, C),
    }
    tensors = {}
    for layer in range(2):
        for name, rows in (("q", H * D), ("k", G * D), ("v", G * C)):
            tensors[f"{layer}.{name}.weight"] = normal(rows, E, seed=layer + rows)
            tensors[f"{layer}.{name}.bias"] = normal(rows, seed=layer + rows + 50)
        tensors[f"{layer}.o.weight"] = normal(E, H * C, seed=layer + 90)
    return Layout(FACTS, places), tensors


# Fused, interleaved as in GPT-NeoX: head by head its query, its key and its value, so a stride of 3 D.
FUSED = attention(heads=3, kv_groups=3)


def interleaved() -> tuple[Layout, dict[str, Tensor]]:
    places = {}
    for part, letter in enumerate("QKV"):
        places[f"W_{letter}"] = Place("{layer}.qkv.weight", part * D, 3, D, 3 * D)
        places[f"b_{letter}"] = Place("{layer}.qkv.bias", part * D, 3, D, 3 * D)
    places["W_O"] = Place("{layer}.o.weight", 0, 3, D, D, axis=1)
    tensors = {}
    for layer in range(2):
        tensors[f"{layer}.qkv.weight"] = normal(9 * D, E, seed=layer)
        tensors[f"{layer}.qkv.bias"] = normal(9 * D, seed=layer + 10)
        tensors[f"{layer}.o.weight"] = normal(E, 3 * D, seed=layer + 20)
    return Layout(FUSED, places), tensors


# Fused, transposed as in GPT-2's Conv1D: all queries, then all keys, then all values, on the columns.
def transposed() -> tuple[Layout, dict[str, Tensor]]:
    places = {}
    for part, letter in enumerate("QKV"):
        places[f"W_{letter}"] = Place("{layer}.qkv.weight", part * 3 * D, 3, D, D, axis=1)
        places[f"b_{letter}"] = Place("{layer}.qkv.bias", part * 3 * D, 3, D, D)
    places["W_O"] = Place("{layer}.o.weight", 0, 3, D, D)
    tensors = {}
    for layer in range(2):
        tensors[f"{layer}.qkv.weight"] = normal(E, 9 * D, seed=layer)
        tensors[f"{layer}.qkv.bias"] = normal(9 * D, seed=layer + 10)
        tensors[f"{layer}.o.weight"] = normal(3 * D, E, seed=layer + 20)
    return Layout(FUSED, places), tensors


def in_runs() -> tuple[Layout, dict[str, Tensor]]:
    """Fused group by group as in InternLM2: a group's two queries, then its key, then its value."""
    places = {
        "W_Q": Place("{layer}.qkv.weight", 0, 4, D, D, together=2, run=4 * D),
        "b_Q": Place("{layer}.qkv.bias", 0, 4, D, D, together=2, run=4 * D),
        "W_O": Place("{layer}.o.weight", 0, 4, D, D, axis=1),
    }
    for part, letter in ((2, "K"), (3, "V")):
        places[f"W_{letter}"] = Place("{layer}.qkv.weight", part * D, 2, D, 4 * D)
        places[f"b_{letter}"] = Place("{layer}.qkv.bias", part * D, 2, D, 4 * D)
    tensors = {}
    for layer in range(2):
        tensors[f"{layer}.qkv.weight"] = normal(8 * D, E, seed=layer)
        tensors[f"{layer}.qkv.bias"] = normal(8 * D, seed=layer + 10)
        tensors[f"{layer}.o.weight"] = normal(E, 4 * D, seed=layer + 20)
    return Layout(FACTS, places), tensors


LAYOUTS = {"in_runs": in_runs, "separate": separate, "interleaved": interleaved, "transposed": transposed}
everywhere = pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
Make = Callable[[], tuple[Layout, dict[str, Tensor]]]


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_heads_on_rows_of_their_own_matrices() -> None:
    layout, tensors = separate()
    qk, ov = read(layout, "qk", tensors), read(layout, "ov", tensors)
    for layer in range(2):
        for h in range(H):
            assert torch.equal(qk["W_Q"][layer, h], tensors[f"{layer}.q.weight"][h * D : (h + 1) * D])
            assert torch.equal(qk["b_Q"][layer, h], tensors[f"{layer}.q.bias"][h * D : (h + 1) * D])
            assert torch.equal(ov["W_O"][layer, h], tensors[f"{layer}.o.weight"][:, h * C : (h + 1) * C].T)
        for g in range(G):
            assert torch.equal(qk["W_K"][layer, g], tensors[f"{layer}.k.weight"][g * D : (g + 1) * D])
            assert torch.equal(ov["b_V"][layer, g], tensors[f"{layer}.v.bias"][g * C : (g + 1) * C])
    assert list(qk) == ["W_Q", "W_K", "b_Q", "b_K"]
    assert list(ov) == ["W_V", "W_O", "b_V"]


def test_heads_that_interleave_query_key_and_value() -> None:
    layout, tensors = interleaved()
    roles = read(layout, "qk", tensors) | read(layout, "ov", tensors)
    for layer in range(2):
        weight, bias = tensors[f"{layer}.qkv.weight"], tensors[f"{layer}.qkv.bias"]
        for h in range(3):
            for part, letter in enumerate("QKV"):
                rows = weight.reshape(3, 3, D, E)[h, part]
                assert torch.equal(roles[f"W_{letter}"][layer, h], rows)
                assert torch.equal(roles[f"b_{letter}"][layer, h], bias.reshape(3, 3, D)[h, part])


def test_heads_on_the_columns() -> None:
    layout, tensors = transposed()
    roles = read(layout, "qk", tensors) | read(layout, "ov", tensors)
    for layer in range(2):
        for part, letter in enumerate("QKV"):
            columns = tensors[f"{layer}.qkv.weight"].reshape(E, 3, 3, D)[:, part]
            assert torch.equal(roles[f"W_{letter}"][layer], columns.permute(1, 2, 0))
        assert torch.equal(roles["W_O"][layer], tensors[f"{layer}.o.weight"].reshape(3, D, E))


def test_heads_in_runs() -> None:
    layout, tensors = in_runs()
    roles = read(layout, "qk", tensors) | read(layout, "ov", tensors)
    for layer in range(2):
        blocks = tensors[f"{layer}.qkv.weight"].reshape(2, 4, D, E)
        biases = tensors[f"{layer}.qkv.bias"].reshape(2, 4, D)
        assert torch.equal(roles["W_Q"][layer], blocks[:, :2].flatten(0, 1))
        assert torch.equal(roles["b_Q"][layer], biases[:, :2].flatten(0, 1))
        assert torch.equal(roles["W_K"][layer], blocks[:, 2])
        assert torch.equal(roles["W_V"][layer], blocks[:, 3])
    # The same on the columns.
    place = Place("w", 0, 4, D, D, axis=1, together=2, run=4 * D)
    weight = tensors["0.qkv.weight"]
    assert torch.equal(place.view(weight.T).flatten(0, 1), roles["W_Q"][0])
    with pytest.raises(UserError, match=f"w: has {6 * D - 1} rows, the layout needs {6 * D}"):
        place.view(weight[: 6 * D - 1].T)
    # Gaps between the heads of a run as well as between the runs: 0 1, 5 6, then 11 12, 16 17.
    rows = Place("w", 0, 4, 2, 5, together=2, run=11).view(torch.arange(18))
    assert rows.tolist() == [[[0, 1], [5, 6]], [[11, 12], [16, 17]]]


@everywhere
@pytest.mark.parametrize("circuit", ["qk", "ov"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_reading_and_writing_back_keeps_every_bit(make: Make, circuit: str, dtype: torch.dtype) -> None:
    """float64 holds every number of the narrower types, so the way there and back is exact; −0 included."""
    layout, tensors = make()
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.view(-1)[::7] = -0.0
    before = copies(tensors)
    write(layout, tensors, read(layout, circuit, tensors))
    for name, tensor in tensors.items():
        assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name


@everywhere
@pytest.mark.parametrize("role", ["W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"])
def test_writing_touches_its_own_entries_and_no_others(make: Make, role: str) -> None:
    layout, tensors = make()
    # Entries that no arithmetic would bring back: a NaN with a payload, and −0.
    for tensor in tensors.values():
        bits = tensor.view(torch.int64).view(-1)
        bits[::5], bits[1::5] = 0x7FF8000000001234, -(2**63)
    before = copies(tensors)
    circuit = "qk" if role[-1] in "QK" else "ov"
    written = torch.full_like(read(layout, circuit, tensors)[role], 3.25)
    write(layout, tensors, {role: written})
    changed = 0
    for name, tensor in tensors.items():
        own = tensor == 3.25
        changed += int(own.sum())
        assert torch.equal(tensor.view(torch.int64)[~own], before[name].view(torch.int64)[~own]), name
    assert changed == written.numel()
    assert torch.equal(read(layout, circuit, tensors)[role], written)


@everywhere
def test_what_is_read_is_a_copy_and_what_is_viewed_is_not(make: Make) -> None:
    layout, tensors = make()
    before = copies(tensors)
    for values in read(layout, "qk", tensors).values():
        values.zero_()
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)
    place, name = layout.places["W_K"], layout.names("W_K")[1]
    place.view(tensors[name]).zero_()
    assert bool((read(layout, "qk", tensors)["W_K"][1] == 0).all())
    assert bool((read(layout, "qk", tensors)["W_Q"][1] != 0).all())


@everywhere
@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_tensors_hold_what_was_read_until_one_entry_of_it_differs(make: Make, circuit: str) -> None:
    layout, tensors = make()
    roles = read(layout, circuit, tensors)
    assert holds(layout, tensors, roles)
    for role in roles:
        for layer, name in enumerate(layout.names(role)):
            view = layout.places[role].view(tensors[name])
            last = (-1,) * view.ndim
            kept = view[last].clone()
            view[last] = torch.nextafter(kept, kept + 1)
            assert not holds(layout, tensors, roles), (role, layer)
            view[last] = kept
            assert holds(layout, tensors, roles)


def test_tensors_of_another_type_hold_nothing_that_was_read() -> None:
    layout, tensors = separate()
    tensors = {name: tensor.round() for name, tensor in tensors.items()}
    roles = read(layout, "qk", tensors)
    assert not holds(layout, {name: tensor.float() for name, tensor in tensors.items()}, roles)


def test_writing_rounds_to_the_type_of_the_tensor() -> None:
    layout, tensors = separate()
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    values = normal(2, G, D, E, seed=8)
    write(layout, tensors, {"W_K": values})
    assert tensors["0.k.weight"].dtype == torch.bfloat16
    assert torch.equal(tensors["1.k.weight"], values[1].reshape(G * D, E).to(torch.bfloat16))


def test_parameters_of_a_model_can_be_read_and_written() -> None:
    layout, tensors = separate()
    parameters = {name: torch.nn.Parameter(tensor.float()) for name, tensor in tensors.items()}
    roles = read(layout, "qk", parameters)
    assert not any(values.requires_grad for values in roles.values())
    write(layout, parameters, {"W_Q": 2 * roles["W_Q"]})
    assert torch.equal(read(layout, "qk", parameters)["W_Q"], 2 * roles["W_Q"])
    assert parameters["0.q.weight"].requires_grad
    assert parameters["0.q.weight"].grad_fn is None


def test_reading_takes_a_function_a_type_and_a_device() -> None:
    layout, tensors = separate()
    asked = []

    def get(name: str) -> Tensor:
        asked.append(name)
        return tensors[name]

    roles = read(layout, "qk", get, dtype=torch.float32, device="cpu")
    assert torch.equal(roles["W_K"], read(layout, "qk", tensors)["W_K"].float())
    assert {values.dtype for values in roles.values()} == {torch.float32}
    assert set(asked) == set(layout.tensors("qk"))


def test_names_are_those_of_the_circuit_each_once() -> None:
    layout, _ = interleaved()
    assert layout.names("W_O") == ["0.o.weight", "1.o.weight"]
    assert layout.tensors("qk") == ["0.qkv.weight", "1.qkv.weight", "0.qkv.bias", "1.qkv.bias"]
    assert layout.tensors("ov") == [
        "0.qkv.weight",
        "1.qkv.weight",
        "0.o.weight",
        "1.o.weight",
        "0.qkv.bias",
        "1.qkv.bias",
    ]
    bare = Layout(FUSED, {role: place for role, place in layout.places.items() if not role.startswith("b")})
    assert bare.roles("qk") == ["W_Q", "W_K"]
    assert bare.roles("ov") == ["W_V", "W_O"]


@everywhere
def test_a_layout_that_fits_passes_its_check(make: Make) -> None:
    layout, tensors = make()
    layout.check(tensors, "qk")
    layout.check(tensors, "ov")


def test_the_first_tensor_that_is_missing_is_named() -> None:
    layout, tensors = separate()
    del tensors["1.k.weight"]
    with pytest.raises(UserError, match=r"no tensor '1\.k\.weight' in the model.*it has 0\.q\.weight"):
        layout.check(tensors, "qk")
    layout.check(tensors, "ov")


@everywhere
def test_tensors_of_another_width_are_refused(make: Make) -> None:
    layout, tensors = make()
    name = layout.names("W_O")[0]
    axis = 1 - layout.places["W_O"].axis
    tensors[name] = torch.cat([tensors[name], tensors[name].narrow(axis, 0, 1)], dim=axis)
    with pytest.raises(UserError, match=rf"{name}: the embedding is {E + 1} there, the layout needs {E}"):
        layout.check(tensors, "ov")


@pytest.mark.parametrize(
    ("place", "rows"),
    [
        (Place("w", 0, 3, 4, 4), 12),
        (Place("w", 5, 3, 4, 4), 17),
        (Place("w", 8, 2, 4, 12), 24),
        (Place("w", 1, 1, 2, 99), 3),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_tensors_that_are_too_short_are_refused(place: Place, rows: int, axis: int) -> None:
    place = Place(place.name, place.start, place.heads, place.size, place.stride, axis)
    shape = (rows, 7) if axis == 0 else (7, rows)
    assert place.view(torch.zeros(shape)).shape == (place.heads, place.size, 7)
    short = (rows - 1, 7) if axis == 0 else (7, rows - 1)
    with pytest.raises(UserError, match=f"w: has {rows - 1} rows, the layout needs {rows}"):
        place.view(torch.zeros(short))


def test_too_few_layers_of_values_are_refused() -> None:
    layout, tensors = separate()
    with pytest.raises(ValueError, match="shorter"):
        write(layout, tensors, {"W_K": normal(1, G, D, E)})
