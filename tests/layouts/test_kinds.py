"""The layouts as data: every place holds the rows that the layout's own words promise."""

import re

import pytest
import torch
from torch import Tensor

from cases import normal
from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention
from identcli.layouts import latent, lora
from identcli.layouts.detect import KINDS, Site, kinds_by_name, sites
from identcli.layouts.kind import Kind

H, G, E, D, C = 6, 2, 11, 4, 5
M = H // G


def roles(facts: Attention) -> dict[str, Tensor]:
    """The role tensors that a layer is made of, all numbers different."""
    shapes = {"W_Q": (H, D, E), "W_K": (G, D, E), "W_V": (G, facts.v_size, E), "W_O": (H, facts.v_size, E)}
    shapes |= {"b_Q": (H, D), "b_K": (G, D), "b_V": (G, facts.v_size)}
    return {role: normal(*shape, seed=number) for number, (role, shape) in enumerate(shapes.items())}


def stored(kind: Kind, of: dict[str, Tensor], at: str) -> dict[str, Tensor]:
    """The layer's tensors, put together by hand as the docstring of Kind says."""

    def joined(letter: str) -> Tensor:
        bias = {name: of[f"b_{name}"].unsqueeze(-1) for name in "QKV"}
        rows = of if letter == "W" else {f"W_{name}": value for name, value in bias.items()}
        q, k, v = (rows[f"W_{name}"] for name in "QKV")
        if kind.order == "groups":
            parts = [part for g in range(G) for part in (*q[g * M : (g + 1) * M], k[g], v[g])]
            return torch.cat(parts)
        return torch.cat([part.flatten(0, 1) for part in (q, k, v)])

    tensors = {}
    if kind.fused:
        tensors = {at + kind.weight("Q"): joined("W"), at + kind.bias("Q"): joined("b").squeeze(-1)}
    else:
        for letter in "QKV":
            tensors[at + kind.weight(letter)] = of[f"W_{letter}"].flatten(0, 1)
            tensors[at + kind.bias(letter)] = of[f"b_{letter}"].flatten()
    tensors[at + kind.weight("O")] = of["W_O"].flatten(0, 1).T
    turned = {name: t.T.contiguous() if kind.across and t.ndim == 2 else t for name, t in tensors.items()}
    return {name: tensor.contiguous() for name, tensor in turned.items()}


@pytest.mark.parametrize("name", KINDS)
def test_places_shapes_and_facts_agree_with_a_layer_put_together_by_hand(name: str) -> None:
    kind = KINDS[name]
    facts = Attention(1, H, G, E, D, D if kind.fused else C, True, True, True)
    of, at = roles(facts), f"model.layers.{{layer}}.{kind.inside[0]}"
    tensors = stored(kind, of, at)
    places = kind.places(at, facts)
    assert set(places) == set(of)
    for role, place in places.items():
        view = place.view(tensors[place.name])
        assert torch.equal(view.reshape(of[role].shape), of[role])
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert kind.shapes(at, facts) == shapes
    told = kind.facts(at, shapes, H, rotary=2)
    assert (told.kv_groups, told.embedding, told.qk_size, told.v_size) == (G, E, D, facts.v_size)
    assert kind.biases(at, shapes) == {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": False}
    with pytest.raises(UserError, match="--heads 5: "):
        kind.facts(at, shapes, 5, rotary=2)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("before", ["", "model.", "a.7.model.", "_orig_mod.module."])
def test_layers_are_found_whatever_stands_before_them(name: str, before: str) -> None:
    kind = KINDS[name]
    at = f"{before}layers.{{}}.{kind.inside[0]}"
    names = list(dict.fromkeys(at.format(layer) + kind.weight(letter) for layer in (10, 0, 2) for letter in "QKVO"))
    assert sites(kind, names) == [Site(f"{before}layers.{{layer}}.{kind.inside[0]}", (0, 2, 10))]
    assert kind in kinds_by_name(names)
    # Without an output matrix it isn't attention, whatever the names are.
    assert sites(kind, [name for name in names if not name.endswith(kind.weight("O"))]) == []


def test_names_of_layouts_are_distinct_or_their_tensors_tell_them_apart() -> None:
    """Kinds that share all their names must differ in something that a config, a flag or a shape decides."""
    seen: dict[tuple, list[Kind]] = {}
    for kind in KINDS.values():
        seen.setdefault((kind.inside[0], kind.qkv, kind.o), []).append(kind)
    for kinds in seen.values():
        facts = {(k.order, k.across, k.rotated, k.rotary_style, k.model_types) for k in kinds}
        assert len(facts) == len(kinds)


def test_latent_attention_is_cut_as_its_docstring_says() -> None:
    heads, rank, plain, rotary, value = 3, 7, 4, 2, 5
    facts = Attention(1, heads, heads, E, plain + rotary, value, rotary=rotary, rotary_style="interleaved")
    at = "model.layers.{layer}.self_attn."
    shapes = latent.shapes(at, f"{at}q_proj.weight", facts, 0, rank)
    tensors = {name: normal(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    found = latent.located(at, f"{at}q_proj.weight", (0,), facts, rank, key_bias=False)
    assert [(p.part, p.family.circuit, p.family.groups, str(p.family.group)) for p in found] == [
        ("plain", "qk", 3, "GL(4)"),
        ("rotated", "qk", 1, "1 scaled rotations"),
        ("", "ov", 3, "GL(5)"),
    ]
    view = {(p.part, role): place.view(tensors[place.name]) for p in found for role, place in p.places.items()}
    q = tensors[f"{at}q_proj.weight"].view(heads, plain + rotary, E)
    up = tensors[f"{at}kv_b_proj.weight"].view(heads, plain + value, rank)
    assert torch.equal(view["plain", "W_Q"], q[:, :plain])
    assert torch.equal(view["rotated", "W_Q"], q[:, plain:])
    assert torch.equal(view["plain", "W_K"], up[:, :plain])
    assert torch.equal(view["", "W_V"], up[:, plain:])
    assert torch.equal(view["rotated", "W_K"][0], tensors[f"{at}kv_a_proj_with_mqa.weight"][rank:])
    assert torch.equal(view["", "W_O"][1], tensors[f"{at}o_proj.weight"][:, value : 2 * value].T)


def test_adapters_are_grouped_by_their_place_and_what_is_none_is_named() -> None:
    at = "base_model.model.model.layers.{}.self_attn.{}."
    shapes = {}
    for layer in (0, 5):
        shapes[at.format(layer, "q_proj") + "lora_A.weight"] = (4, 9)
        shapes[at.format(layer, "q_proj") + "lora_B.weight"] = (12, 4)
    shapes[at.format(1, "v_proj") + "lora_A.default.weight"] = (2, 9)
    shapes[at.format(1, "v_proj") + "lora_B.default.weight"] = (6, 2)
    shapes["base_model.model.wte.lora_embedding_A"] = (3, 50)
    shapes["base_model.model.wte.lora_embedding_B"] = (9, 3)
    shapes[at.format(2, "k_proj") + "lora_A.weight"] = (4, 9)
    assert lora.is_adapter(shapes)
    found, left = lora.located(shapes)
    assert [(p.part, p.layers, str(p.family.group)) for p in found] == [
        ("self_attn.q_proj", (0, 5), "GL(4)"),
        ("self_attn.v_proj", (1,), "GL(2)"),
        ("wte", (0,), "GL(3)"),
    ]
    assert all(
        re.search("lora_(embedding_)?B", place.name) for p in found for r, place in p.places.items() if r == "lora_B"
    )
    assert [why for _, why in left] == [
        f"its other half {at.format(2, 'k_proj')}lora_B.weight is not in the checkpoint"
    ]
