"""Tangents are what moves look like near the identity."""

import pytest
import torch
from torch import Tensor

from cases import CASES, GROUPS, Case, attention, random_roles
from identcli.symmetry.act import act, move
from identcli.symmetry.pair import Pair, gather, scatter
from identcli.symmetry.tangent import tangent
from slow_attention import model
from slow_symmetry import random_algebra


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tangent_is_the_derivative_of_a_move(case: Case) -> None:
    """Slow twin: autograd through the matrix exponential and the inverse."""
    pair = case.pair()
    X = random_algebra(case.group, *pair.A.shape[:-2], seed=5)
    parts = [i for i, part in enumerate(pair) if part is not None]

    def along(t: Tensor) -> tuple[Tensor, ...]:
        moved = act(move(torch.linalg.matrix_exp(t * X)), pair)
        return tuple(moved[i] for i in parts)

    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    _, slow = torch.autograd.functional.jvp(along, zero, one)
    fast = tangent(X, pair)
    assert [i for i, part in enumerate(fast) if part is not None] == parts
    for i, derivative in zip(parts, slow, strict=True):
        # Entries of order 5 and a dozen roundings of 2e-16.
        torch.testing.assert_close(fast[i], derivative, rtol=0, atol=1e-13)


def derivative_of_outputs(positions: str, direction: Pair) -> Tensor:
    facts = attention(4, 2, positions=positions)
    roles = random_roles(facts)
    change = scatter(facts.pair("qk"), direction)

    def outputs(t: Tensor) -> Tensor:
        return model(
            facts, {role: value + t * change[role] if role in change else value for role, value in roles.items()}
        )

    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    return torch.autograd.functional.jvp(outputs, zero, one)[1]


@pytest.mark.parametrize("positions", GROUPS)
def test_the_model_does_not_change_along_a_tangent(positions: str) -> None:
    facts = attention(4, 2, positions=positions)
    pair = gather(facts.pair("qk"), random_roles(facts))
    direction = tangent(random_algebra(facts.pair("qk").group, 2, 2, seed=6), pair)
    # The derivative is a sum of terms of order 1 that cancel: their roundings are left.
    assert float(derivative_of_outputs(positions, direction).abs().max()) < 1e-12
    # Counter-examples: the sign printed in the paper's objective, no transpose, a bias left behind.
    for wrong in (
        direction._replace(B=-direction.B, b=-direction.b),
        tangent(-random_algebra(facts.pair("qk").group, 2, 2, seed=6).mT, pair)._replace(A=direction.A, a=direction.a),
        direction._replace(a=torch.zeros_like(pair.a)),
    ):
        assert float(derivative_of_outputs(positions, wrong).abs().max()) > 1e-3


def test_the_direction_need_not_be_invertible() -> None:
    """(W_Q, −W_K), the paper's example, is X = 1; a single entry of X is a direction as well."""
    pair = Pair(*(part[0, 0] for part in attention_pair()))
    eye = torch.eye(6, dtype=torch.float64)
    assert torch.equal(tangent(eye, pair).A, pair.A)
    assert torch.equal(tangent(eye, pair).B, -pair.B)
    single = torch.zeros(6, 6, dtype=torch.float64)
    single[1, 3] = 1
    direction = tangent(single, pair)
    assert torch.equal(direction.A[1], pair.A[3])
    assert torch.equal(direction.B[3], -pair.B[1])
    assert int((direction.A != 0).any(1).sum()) == int((direction.B != 0).any(1).sum()) == 1


def attention_pair() -> Pair:
    facts = attention()
    return gather(facts.pair("qk"), random_roles(facts))
