"""The pairs of a layer, and the share of a random update that lies in their unidentified directions."""

import pytest
import torch

from cases import CASES, Case, attention, normal, random_roles
from identcli.architecture.errors import UserError
from identcli.architecture.groups import Group
from identcli.architecture.pairs import ROLES, Attention, PairFamily
from identcli.symmetry.pair import Pair
from slow_symmetry import last_of, null_directions

GPT2 = Attention(12, 12, 12, 768, 64, 64, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
LLAMA2_70B = Attention(80, 64, 8, 8192, 128, 128, rotary=128)


def test_a_layer_has_one_pair_a_kv_group_in_each_circuit() -> None:
    expected = PairFamily("qk", 80, 8, 8, 8192, Group(128, 128), bias_a=False, bias_b=False)
    assert LLAMA2_70B.pair("qk") == expected
    # Rotary positions don't reach values.
    assert LLAMA2_70B.pair("ov") == PairFamily("ov", 80, 8, 8, 8192, Group(128), bias_a=False, bias_b=False)
    assert GPT2.pair("qk") == PairFamily("qk", 12, 12, 1, 768, Group(64), bias_a=True, bias_b=True)
    # b_O doesn't move with W_O.
    assert GPT2.pair("ov") == PairFamily("ov", 12, 12, 1, 768, Group(64), bias_a=True, bias_b=False)


@pytest.mark.parametrize("letter", "qkv")
def test_each_bias_belongs_to_its_own_circuit(letter: str) -> None:
    facts = attention(biases=letter)
    qk, ov = facts.pair("qk"), facts.pair("ov")
    assert (qk.bias_a, qk.bias_b, ov.bias_a, ov.bias_b) == (letter == "q", letter == "k", letter == "v", False)


def test_head_sizes_and_styles_go_to_their_group() -> None:
    facts = attention(positions="interleaved")
    assert facts.pair("qk").group == Group(6, 6, "interleaved")
    assert facts.pair("ov").group == Group(5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_columns_count_every_weight_of_the_circuit_once(case: Case) -> None:
    family, roles = case.family, random_roles(case.attention)
    weights = sum(roles[role].numel() for role in ROLES[case.circuit][:2])
    assert family.layers * family.groups * family.group.size * sum(family.columns) == weights


@pytest.mark.parametrize("case", [c for c in CASES if not c.biased], ids=str)
def test_the_isotropic_share_is_the_mean_over_random_updates(case: Case) -> None:
    """Monte Carlo on a slow orthonormal basis of the null directions: 2,000 updates."""
    one = last_of(case.pair())
    directions = null_directions(case.group, Pair(one.A, one.B))
    basis = torch.linalg.qr(directions).Q
    updates = normal(len(basis), 2000, seed=4)
    shares = (basis.T @ updates).square().sum(0) / updates.square().sum(0)
    # Four standard errors of the mean.
    error = 4 * float(shares.std()) / 2000**0.5
    assert error < 0.1 * case.family.isotropic_share
    assert case.family.isotropic_share == pytest.approx(float(shares.mean()), abs=error)


def test_the_isotropic_share_in_the_words_of_the_paper() -> None:
    assert GPT2.pair("qk").isotropic_share == 1 / (2 * 12)
    assert GPT2.pair("ov").isotropic_share == 1 / (2 * 12)
    # Grouped: D/((m + 1)E), and with rotary positions 1/((m + 1)E).
    assert LLAMA2_70B.pair("ov").isotropic_share == 128 / (9 * 8192)
    assert LLAMA2_70B.pair("qk").isotropic_share == 1 / (9 * 8192)


@pytest.mark.parametrize("name", ["layers", "heads", "kv_groups", "embedding", "qk_size", "v_size"])
def test_sizes_below_one_are_refused(name: str) -> None:
    sizes = {"layers": 2, "heads": 2, "kv_groups": 2, "embedding": 8, "qk_size": 4, "v_size": 4} | {name: 0}
    with pytest.raises(UserError, match=f"{name} 0: must be at least 1"):
        Attention(**sizes)


def test_contradictory_facts_are_refused() -> None:
    with pytest.raises(UserError, match="9 heads can't be shared out over 4 kv groups"):
        Attention(1, 9, 4, 8, 4, 4)
    with pytest.raises(UserError, match="circuit 'mlp': must be 'qk' or 'ov'"):
        GPT2.pair("mlp")
    with pytest.raises(UserError, match="rotary size 128: must lie between 0 and the head size 64"):
        Attention(1, 1, 1, 64, 64, 64, rotary=128).pair("qk")
