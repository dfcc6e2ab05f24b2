"""Pairs out of role tensors and back, with nothing lost and the right heads together."""

import pytest
import torch

from cases import CASES, GROUPS, Case, attention, normal, random_roles
from identcli.architecture.pairs import ROLES, Circuit
from identcli.symmetry.pair import (
    Pair,
    augmented,
    difference,
    gather,
    null_energy,
    outer,
    plain_rows,
    rotated_rows,
    scatter,
    squared_norm,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gathering_and_scattering_keep_every_bit(case: Case) -> None:
    roles = random_roles(case.attention)
    back = scatter(case.family, gather(case.family, roles))
    assert set(back) == {role for role in ROLES[case.circuit] if role in roles}
    for role, values in back.items():
        assert torch.equal(values, roles[role]), role


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pair_holds_its_heads_side_by_side(case: Case) -> None:
    """Slow twin: one kv group and one head at a time."""
    roles, pair = random_roles(case.attention), case.pair()
    many, few = ("W_Q", "W_K") if case.circuit == "qk" else ("W_O", "W_V")
    m = case.family.heads_per_group
    for layer in range(case.attention.layers):
        for g in range(case.attention.kv_groups):
            wide = torch.cat([roles[many][layer, g * m + i] for i in range(m)], dim=1)
            A, B = (wide, roles[few][layer, g])
            if case.circuit == "ov":
                A, B = B, A
            assert torch.equal(pair.A[layer, g], A)
            assert torch.equal(pair.B[layer, g], B)
            if not case.biased:
                continue
            if case.circuit == "qk":
                queries = [roles["b_Q"][layer, g * m + i] for i in range(m)]
                assert torch.equal(pair.a[layer, g], torch.stack(queries, dim=1))
                assert torch.equal(pair.b[layer, g, :, 0], roles["b_K"][layer, g])
            else:
                assert torch.equal(pair.a[layer, g, :, 0], roles["b_V"][layer, g])
    assert (pair.a is not None) == case.biased
    assert (pair.b is not None) == (case.biased and case.circuit == "qk")
    assert (pair.A.shape[-1], pair.B.shape[-1]) == case.family.columns


@pytest.mark.parametrize(("biases", "has_a", "has_b"), [("q", True, False), ("k", False, True), ("v", False, False)])
def test_each_bias_is_there_on_its_own(biases: str, has_a: bool, has_b: bool) -> None:
    facts = attention(biases=biases)
    roles = random_roles(facts)
    pair = gather(facts.pair("qk"), roles)
    assert (pair.a is not None, pair.b is not None) == (has_a, has_b)
    assert scatter(facts.pair("qk"), pair).keys() == {"W_Q", "W_K"} | ({f"b_{biases.upper()}"} - {"b_V"})


@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_the_two_sides_may_have_columns_of_their_own(circuit: Circuit) -> None:
    """A latent key (or value) reads fewer inputs than the queries (or outputs) that share it."""
    family = attention(4, 2).pair(circuit)
    name_A, name_B, name_a, _ = ROLES[circuit]
    heads_A, heads_B = (4, 2) if circuit == "qk" else (2, 4)
    roles = {name_A: normal(2, heads_A, 6, 9), name_B: normal(2, heads_B, 6, 4), name_a: normal(2, heads_A, 6)}
    back = scatter(family, gather(family, roles))
    assert back.keys() == roles.keys()
    assert all(torch.equal(back[role], roles[role]) for role in roles)


@pytest.mark.parametrize("name", GROUPS)
def test_augmenting_appends_the_biases_that_count(name: str) -> None:
    """A key bias counts on the rows that positions rotate, and nowhere else."""
    group = GROUPS[name]
    pair = Pair(normal(3, 6, 8), normal(3, 6, 4, seed=1), normal(3, 6, 2, seed=2), normal(3, 6, 1, seed=3))
    result = augmented(group, pair)
    assert torch.equal(result.A, torch.cat([pair.A, pair.a], dim=-1))
    assert result.a is None
    assert result.b is None
    if not group.rotary:
        assert torch.equal(result.B, pair.B)
        assert torch.equal(augmented(group, Pair(pair.A, pair.B)).A, pair.A)
        return
    assert torch.equal(result.B[..., :4], pair.B)
    for row in range(6):
        expected = pair.b[:, row, 0] if row < group.rotary else torch.zeros(3, dtype=torch.float64)
        assert torch.equal(result.B[:, row, 4], expected)


@pytest.mark.parametrize("name", GROUPS)
def test_the_energy_of_key_bias_rows_that_the_softmax_cancels(name: str) -> None:
    group = GROUPS[name]
    update = Pair(normal(3, 6, 8), normal(3, 6, 4), None, normal(3, 6, 1, seed=3))
    expected = [sum(float(update.b[i, row, 0]) ** 2 for row in range(group.rotary, 6)) for i in range(3)]
    # A sum of six squares: rounding alone.
    assert null_energy(group, update).tolist() == pytest.approx(expected, rel=1e-14, abs=0)
    assert null_energy(group, update._replace(b=None)).tolist() == [0, 0, 0]


def test_squared_norm_sums_the_parts_that_are_there() -> None:
    pair = Pair(normal(2, 3, 4), normal(2, 3, 5, seed=1), normal(2, 3, 1, seed=2), normal(2, 3, 1, seed=3))
    slow = [sum(float(x) ** 2 for part in pair for x in part[i].flatten()) for i in range(2)]
    assert squared_norm(pair).tolist() == pytest.approx(slow, rel=1e-14)  # about 30 roundings of 1e-16
    without = [sum(float(x) ** 2 for part in pair[:2] for x in part[i].flatten()) for i in range(2)]
    assert squared_norm(Pair(pair.A, pair.B)).tolist() == pytest.approx(without, rel=1e-14)


def test_differences_are_taken_place_by_place() -> None:
    after, before = (Pair(*(normal(2, 3, 4, seed=4 * k + i) for i in range(4))) for k in range(2))
    for result, x, y in zip(difference(after, before), after, before, strict=True):
        assert torch.equal(result, x - y)
    assert difference(after._replace(a=None), before).a is None
    assert difference(after, before._replace(b=None)).b is None


def test_some_layers_are_those_layers_alone() -> None:
    pair = Pair(normal(3, 2, 4), normal(3, 2, 5, seed=1), normal(3, 2, 1, seed=2))
    for some in (slice(0, 1), slice(1, 3), slice(2, 9), slice(0, 3), slice(0, 9)):
        part = pair.layers(some)
        assert all(torch.equal(x, y[some]) for x, y in zip(part[:3], pair[:3], strict=True))
        assert part.b is None


@pytest.mark.parametrize("columns", [1, 3])
def test_outer_products_are_summed_over_the_columns(columns: int) -> None:
    x, y = normal(2, 4, columns), normal(2, 4, columns, seed=1)
    torch.testing.assert_close(outer(x, y), torch.einsum("bim,bjm->bij", x, y), rtol=0, atol=1e-14)  # 3 terms of 10


def test_rotated_and_plain_rows_make_up_the_matrix() -> None:
    matrix = normal(2, 6, 3)
    rows = rotated_rows(GROUPS["half"], matrix)
    assert torch.equal(rows.real, matrix[:, [0, 1, 2]])
    assert torch.equal(rows.imag, matrix[:, [3, 4, 5]])
    rows = rotated_rows(GROUPS["interleaved"], matrix)
    assert torch.equal(rows.real, matrix[:, [0, 2, 4]])
    assert torch.equal(rows.imag, matrix[:, [1, 3, 5]])
    # Pairs lie half a *rotary* width apart, not half a head.
    rows = rotated_rows(GROUPS["partial"], matrix)
    assert torch.equal(rows.imag, matrix[:, [2, 3]])
    assert torch.equal(plain_rows(GROUPS["partial"], matrix), matrix[:, 4:])
    assert torch.equal(plain_rows(GROUPS["none"], matrix), matrix)
