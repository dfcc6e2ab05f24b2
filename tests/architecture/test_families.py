"""Families: the paper's own count, what restricting does, and what each fact of a description changes."""

from dataclasses import replace

import pytest

from identcli.architecture.builtin import find
from identcli.architecture.count import PAPER, Count, count
from identcli.architecture.description import Architecture, Block, Experts, Head, Mlp, Norm, QKNorm, Stack, Tokens
from identcli.architecture.equivalence import equivalent
from identcli.architecture.errors import UserError
from identcli.architecture.families import families
from identcli.architecture.formula import Formula
from identcli.architecture.gpt import gpt
from identcli.architecture.pairs import Attention

RMS = Norm("rms")


def named(model: str, **options: object) -> Count:
    architecture = find(model)
    assert architecture is not None
    return count(architecture, **options)  # type: ignore[arg-type]


def llama(**changes: object) -> Architecture:
    """E 8, H 4, G 2, D 4; `changes` go to its block."""
    attention = Attention(2, 4, 2, 8, 4, 4, rotary=4)
    block = replace(Block(attention, Mlp(6, "silu", gated=True), RMS), **changes)  # type: ignore[arg-type]
    return Architecture("llama", (Stack("decoder", Tokens(20), (block,), final_norm=RMS),), Head(tied=False))


def dimensions(architecture: Architecture, **options: object) -> dict[str, int]:
    return count(architecture, **options).by_family  # type: ignore[arg-type]


def test_the_papers_share_is_one_minus_one_over_twice_the_heads() -> None:
    for heads in (1, 2, 6, 12):
        counted = count(gpt("x", 3, heads, 96, 32, 200, bias=True), only=PAPER)
        assert counted.identified_share == pytest.approx(1 - 1 / (2 * heads), rel=1e-15)


def test_llama_2_70b_by_the_paper() -> None:
    paper = named("llama-2-70b-hf", only=("qk",)).paper
    assert paper is not None
    assert paper.as_it_is == 1_024
    assert paper.without_rotary == 131_072
    assert paper.without_rotary_and_groups == 1_048_576
    assert named("llama-2-70b-hf", only=PAPER).per_layer == 132_096


def test_the_papers_formula_is_not_offered_where_it_does_not_hold() -> None:
    assert named("qwen3-8b").paper is None
    assert named("deepseek-v3").paper is None


@pytest.mark.parametrize(("width", "heads", "needed"), [(384, 6, 520), (768, 12, 1064), (4096, 32, 5748), (96, 1, 96)])
def test_single_head_equivalent(width: int, heads: int, needed: int) -> None:
    found = equivalent(gpt("x", 1, heads, width, 8, 5000, bias=False))
    assert found.width == needed
    assert found.reachable == (heads == 1)
    assert 2 * (needed - 1) ** 2 < found.identified <= found.identified_single


def test_single_head_equivalent_is_the_least_width_for_many_sizes() -> None:
    for heads in range(1, 13):
        for width in range(heads, 120, heads):
            found = equivalent(gpt("x", 1, heads, width, 8, 5000, bias=False))
            least = next(n for n in range(width, 2 * width) if 2 * n * n * heads >= width**2 * (4 * heads - 2))
            assert found.width == least


def test_no_single_head_equivalent_of_latents() -> None:
    architecture = find("deepseek-v3")
    assert architecture is not None
    with pytest.raises(UserError, match=r"4\.10"):
        equivalent(architecture)


def test_logits_fix_what_log_probabilities_leave() -> None:
    shift = dimensions(llama())
    assert "head_shift" in shift
    assert "head_shift" not in dimensions(llama(), outputs="logits")
    with pytest.raises(UserError, match="log_probs"):
        families(llama(), outputs="probs")  # type: ignore[arg-type]


def test_epsilon_fixes_scales() -> None:
    assert "residual_scale" not in dimensions(llama())
    assert dimensions(llama(), eps=False)["residual_scale"] == 1


def test_a_qk_norm_takes_the_pairs_group_away() -> None:
    with_norm = dimensions(llama(qk_norm=QKNorm("head")))
    assert "qk" not in with_norm
    assert with_norm["qk_norm_gains"] == 2 * 2
    assert dimensions(llama(qk_norm=QKNorm("head", gain=False)))["qk"] == 2 * 2 * 2


def test_sinks_fix_value_biases() -> None:
    attention = Attention(1, 4, 2, 8, 4, 4, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
    assert {"key_bias", "value_bias"} <= set(dimensions(llama(attention=attention)))
    assert not {"key_bias", "value_bias"} & set(dimensions(llama(attention=attention, sinks=True)))
    assert "key_bias" not in dimensions(llama(attention=attention, softcap=True))


def test_partial_rotary_frees_the_unrotated_key_biases() -> None:
    attention = Attention(1, 4, 2, 8, 6, 6, k_bias=True, rotary=2)
    found = dimensions(llama(attention=attention))
    assert found["qk"] == 2 * (2 + 4**2)
    assert found["key_bias"] == 2 * 4


@pytest.mark.parametrize(("activation", "gated", "free"), [("relu", False, 12), ("gelu", False, 0), ("gelu", True, 12)])
def test_which_units_scale(activation: str, gated: bool, free: int) -> None:
    mlp = Mlp(6, activation, gated)  # type: ignore[arg-type]
    assert dimensions(llama(mlp=mlp)).get("mlp_scales", 0) == free


def test_routers() -> None:
    softmax = Experts(4, 2, 3, router_bias=True)
    assert dimensions(llama(mlp=Mlp(6, "silu", True, experts=softmax)))["router_shift"] == 2 * 9
    sigmoid = Experts(4, 2, 3, router="sigmoid")
    assert "router_shift" not in dimensions(llama(mlp=Mlp(6, "silu", True, experts=sigmoid)))


def test_a_tied_head_and_norms_on_branches_break_the_rotation() -> None:
    assert dimensions(llama())["residual_rotation"] == 8 * 7 // 2
    tied = replace(llama(), head=Head(tied=True))
    assert "residual_rotation" not in dimensions(tied)
    assert "residual_rotation" not in dimensions(llama(placement="output"))


def test_small_vocabulary_of_nanogpt() -> None:
    """shakespeare_char without biases: at least 451,364 of 10,745,088."""
    counted = count(gpt("shakespeare", 6, 6, 384, 256, 65, bias=False))
    assert counted.parameters.total == 10_745_088
    assert counted.by_family["small_vocabulary"] == 51_364
    assert counted.by_family["unseen_directions"] == 72_576
    assert (counted.total, counted.lower_bound) == (451_364, True)


def test_restricting_names_what_is_left_out() -> None:
    counted = named("gpt2", only=("qk",))
    assert counted.total == 12 * 12 * 64**2
    assert any("ov" in line for line in counted.excluded)
    with pytest.raises(UserError, match="did you mean qk"):
        named("gpt2", only=("qkk",))


def test_layers_that_differ_have_no_common_number() -> None:
    counted = named("deepseek-v3")
    assert counted.per_layer is None
    assert [(layer.place, layer.layers) for layer in counted.layers] == [("decoder 0-2", 3), ("decoder 3-60", 58)]


def test_the_data_have_the_promised_shape() -> None:
    data = named("gpt2").as_data()
    assert {"name", "parameters", "unidentified", "identified_share", "excluded"} <= set(data)
    assert {"total", "without_embeddings", "attention"} <= set(data["parameters"])
    assert data["unidentified"]["total"] == sum(data["unidentified"]["families"].values()) == 1_347_352
    assert data["unidentified"]["per_layer"] == 112_130
    assert data["identified_share"] == 1 - 1_347_352 / 124_439_808


def test_a_formula_prints_what_it_computes() -> None:
    formula = Formula("G*(R + (D - R)**2)", {"G": 4, "R": 2, "D": 8})
    assert (str(formula), formula.value) == ("G·(R + (D − R)²)", 152)


def test_impossible_descriptions_are_refused() -> None:
    with pytest.raises(UserError, match="5 active experts of 4"):
        llama(mlp=Mlp(6, "silu", True, experts=Experts(4, 5, 3)))
    with pytest.raises(UserError, match="head size 10 above the width 8"):
        llama(attention=Attention(1, 4, 2, 8, 10, 4, rotary=10), qk_norm=QKNorm("head"))
