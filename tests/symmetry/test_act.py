"""Moving weights along an orbit leaves the model as it is; every way of doing it wrong does not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cases import CASES, GROUPS, Case, attention, normal, random_roles
from identcli.architecture.groups import Group
from identcli.architecture.pairs import Attention, Circuit
from identcli.symmetry.act import Move, act, basis, move
from identcli.symmetry.pair import Pair, gather, scatter
from slow_attention import first_outputs, model, relative_change
from slow_symmetry import commutant, random_element, random_move

# A layer does some 30 operations on a path, the moved weights are off by the condition of S (at most 4) times
# the machine epsilon 2e-16, and the second layer multiplies that by a few: 1e-14 is usual, 1e-12 is roomy.
SAME = 1e-12
# Wrong moves of order 1 change outputs by 1e-2 to 1; a tenth of the smallest that was seen.
DIFFERENT = 1e-3


def outputs_after(facts: Attention, circuit: Circuit, roles: dict[str, Tensor], moved: Pair) -> Tensor:
    return model(facts, roles | scatter(facts.pair(circuit), moved))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_model_stays_the_same(case: Case) -> None:
    roles = random_roles(case.attention)
    pair = gather(case.family, roles)
    moved = act(random_move(case.group, pair, seed=1), pair)
    after, before = outputs_after(case.attention, case.circuit, roles, moved), first_outputs(case.attention)
    assert relative_change(after, before) < SAME
    assert relative_change(moved.A, pair.A) > 0.1  # or nothing was tried


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_inverse_transpose_is_needed_for_B(case: Case) -> None:
    roles = random_roles(case.attention)
    pair = gather(case.family, roles)
    S, T = random_move(case.group, pair, seed=1)
    before = first_outputs(case.attention)
    for wrong in (Move(S, S), Move(S, T.mT), Move(S, torch.eye(len(S[0, 0]), dtype=S.dtype).expand_as(S))):
        after = outputs_after(case.attention, case.circuit, roles, act(wrong, pair))
        assert relative_change(after, before) > DIFFERENT


@pytest.mark.parametrize("case", [case for case in CASES if case.biased], ids=str)
def test_biases_move_with_their_weights(case: Case) -> None:
    """Leaving b_Q or b_V behind changes the model; leaving b_K behind does so only where positions rotate."""
    roles = random_roles(case.attention)
    pair = gather(case.family, roles)
    moved = act(random_move(case.group, pair, seed=1), pair)
    before = first_outputs(case.attention)
    after = outputs_after(case.attention, case.circuit, roles, moved._replace(a=pair.a))
    assert relative_change(after, before) > DIFFERENT
    if pair.b is None:
        return
    after = outputs_after(case.attention, case.circuit, roles, moved._replace(b=pair.b))
    assert (relative_change(after, before) > DIFFERENT) == (case.group.rotary > 0)
    assert (relative_change(after, before) < SAME) == (case.group.rotary == 0)


@pytest.mark.parametrize("biases", ["q", "k", "v", "qk"])
@pytest.mark.parametrize("positions", GROUPS)
def test_the_model_stays_the_same_with_any_subset_of_biases(biases: str, positions: str) -> None:
    facts = attention(4, 2, biases=biases, positions=positions)
    roles = random_roles(facts)
    circuits: tuple[Circuit, ...] = ("qk", "ov")
    moved = dict(roles)
    for circuit in circuits:
        family = facts.pair(circuit)
        pair = gather(family, roles)
        moved |= scatter(family, act(random_move(family.group, pair, seed=3), pair))
    assert relative_change(model(facts, moved), model(facts, roles)) < SAME


@pytest.mark.parametrize("positions", ["half", "interleaved", "partial"])
def test_rotary_layers_allow_only_what_commutes_with_their_rotations(positions: str) -> None:
    facts = attention(4, 2, positions=positions)
    roles = random_roles(facts)
    family = facts.pair("qk")
    pair = gather(family, roles)
    before = first_outputs(facts)
    other = "half" if family.group.style == "interleaved" else "interleaved"
    wrong = {
        "any invertible S": Group(6),
        "the other style": replace(family.group, style=other),
    }
    if positions == "partial":
        wrong["pairs half a head apart"] = GROUPS["half"]
    for what, group in wrong.items():
        after = outputs_after(facts, "qk", roles, act(random_move(group, pair, seed=1), pair))
        assert relative_change(after, before) > DIFFERENT, what


def test_heads_that_share_a_key_share_one_element() -> None:
    """Moving some of the heads, or numbering the groups h mod G instead of h // m, changes the model."""
    facts = attention(4, 2)
    family, roles = facts.pair("qk"), random_roles(facts)
    pair = gather(family, roles)
    moved = scatter(family, act(random_move(family.group, pair, seed=1), pair))
    before = first_outputs(facts)
    first_only = {**moved, "W_Q": roles["W_Q"].clone(), "b_Q": roles["b_Q"].clone()}
    first_only["W_Q"][:, 0::2], first_only["b_Q"][:, 0::2] = moved["W_Q"][:, 0::2], moved["b_Q"][:, 0::2]
    assert relative_change(model(facts, roles | first_only), before) > DIFFERENT

    def renumbered(values: Tensor) -> Tensor:
        return values[:, [0, 2, 1, 3]]

    mixed = {role: renumbered(values) if "Q" in role else values for role, values in roles.items()}
    strided = scatter(family, act(random_move(family.group, pair, seed=1), gather(family, mixed)))
    strided = {role: renumbered(values) if "Q" in role else values for role, values in strided.items()}
    assert relative_change(model(facts, roles | strided), before) > DIFFERENT


@pytest.mark.parametrize("name", GROUPS)
def test_the_basis_spans_the_commutant(name: str) -> None:
    group = GROUPS[name]
    ours, slow = basis(group).flatten(1), commutant(group).flatten(1)
    assert len(ours) == len(slow) == group.dimension
    # The slow rows are orthonormal up to the null-space solver's 1e-14.
    assert float((ours - ours @ slow.T @ slow).abs().max()) < 1e-12
    assert int(torch.linalg.matrix_rank(ours)) == group.dimension
    # The counter-example: the other style's basis commutes with other rotations.
    if group.rotary > 0:
        other = basis(replace(group, style="half" if group.style == "interleaved" else "interleaved")).flatten(1)
        assert float((other - other @ slow.T @ slow).abs().max()) > 0.1
    assert basis(group, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", GROUPS)
def test_the_group_is_closed(name: str) -> None:
    """Products and inverses of elements commute with the rotations too, and acting twice is acting once."""
    group = GROUPS[name]
    S, R = random_element(group, seed=1), random_element(group, seed=2)
    span = commutant(group).flatten(1)
    for element in (S @ R, torch.linalg.inv(S), S.T):
        rest = element.flatten() - element.flatten() @ span.T @ span
        assert float(rest.abs().max()) < 1e-12
    pair = Pair(normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2), normal(6, 1, seed=3))
    twice, once = act(move(S), act(move(R), pair)), act(move(S @ R), pair)
    for x, y in zip(twice, once, strict=True):
        # Entries of order 10, S and R conditioned up to 4: some dozens of roundings.
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


def test_a_move_knows_its_inverse_transpose() -> None:
    S = random_element(GROUPS["none"], 3, seed=4)
    step = move(S)
    eye = torch.eye(6, dtype=torch.float64).expand(3, 6, 6)
    torch.testing.assert_close(step.S_inverse_T.mT @ S, eye, rtol=0, atol=1e-14)  # condition 4 × 2e-16 × 6 terms
    assert torch.equal(step.S, S)


def test_float32_weights_stay_float32() -> None:
    pair = Pair(*(part.float() for part in (normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2))))
    moved = act(move(random_element(GROUPS["none"]).float()), pair)
    assert {part.dtype for part in moved[:3]} == {torch.float32}
    assert moved.b is None
    # Roundings of 6e-8 on products of order 10.
    torch.testing.assert_close(moved.B.mT @ moved.A, pair.B.mT @ pair.A, rtol=0, atol=1e-4)
