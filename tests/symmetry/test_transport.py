"""Gradients and moments at the moved point: what autograd would find there."""

import pytest
import torch

from cases import CASES, GROUPS, Case, normal, random_roles
from identcli.symmetry.act import Move, act, move
from identcli.symmetry.balance import balance
from identcli.symmetry.pair import Pair, gather, scatter
from identcli.symmetry.transport import transport, transport_squares
from slow_attention import first_gradient, loss_gradient
from slow_symmetry import random_element, random_move


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transported_gradients_are_autograds_at_the_moved_point(case: Case) -> None:
    roles = random_roles(case.attention)
    pair, gradient = gather(case.family, roles), gather(case.family, first_gradient(case.attention))
    step = random_move(case.group, pair, seed=1)
    there = loss_gradient(case.attention, roles | scatter(case.family, act(step, pair)))
    expected = gather(case.family, there)
    fast, wrong = transport(step, gradient), act(step, gradient)
    for i, (x, y) in enumerate(zip(fast, expected, strict=True)):
        assert (x is None) == (y is None)
        if x is None:
            continue
        # Gradients of order 10 after some hundred roundings of 2e-16, S conditioned up to 4. A key bias that the
        # softmax cancels has a gradient of exactly that noise.
        torch.testing.assert_close(x, y, rtol=0, atol=1e-11)
        if float(y.abs().max()) > 1e-6:
            # Weights move the other way: moving gradients like weights is wrong.
            assert float((wrong[i] - y).abs().max()) > 1e-2 * float(y.abs().max())
    # The other circuit's gradient does not move at all.
    for role, value in first_gradient(case.attention).items():
        if role not in scatter(case.family, pair):
            torch.testing.assert_close(there[role], value, rtol=0, atol=1e-11)


def test_transport_is_linear_so_averages_move_like_gradients() -> None:
    first, second = (Pair(normal(6, 9, seed=s), normal(6, 8, seed=s + 1), normal(6, 1, seed=s + 2)) for s in (0, 3))
    step = move(random_element(GROUPS["none"], seed=7))

    def average(x: Pair, y: Pair) -> Pair:
        return Pair(0.9 * x.A + 0.1 * y.A, 0.9 * x.B + 0.1 * y.B, 0.9 * x.a + 0.1 * y.a)

    fast = transport(step, average(first, second))
    slow = average(transport(step, first), transport(step, second))
    for x, y in zip(fast[:3], slow[:3], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)  # entries of order 5, some twenty roundings
    assert fast.b is None


def squares(pair: Pair) -> Pair:
    return Pair(*(None if part is None else part.square() for part in pair))


@pytest.mark.parametrize("name", ["half", "interleaved"])
def test_second_moments_are_exact_for_the_balance_of_a_rotary_layer(name: str) -> None:
    """It is diagonal, and squares of scaled rows are scaled squares."""
    pair = Pair(normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2), normal(6, 1, seed=3))
    step = balance(GROUPS[name], pair).step
    gradient = Pair(normal(6, 9, seed=4), normal(6, 9, seed=5), normal(6, 1, seed=6), normal(6, 1, seed=7))
    moved, expected = transport_squares(step, squares(gradient)), squares(transport(step, gradient))
    for x, y in zip(moved, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=0)  # a few roundings of 2e-16, and no sum
    assert float((moved.A - squares(gradient).A).abs().max()) > 1e-2


def test_second_moments_are_an_approximation_for_any_other_element() -> None:
    """Right in the mean for independent rows, wrong for equal ones: Adam keeps no products of rows."""
    step = move(random_element(GROUPS["none"], seed=7))
    rows, count = 6, 40_000
    spread = torch.arange(1, rows + 1, dtype=torch.float64).unsqueeze(1)
    independent = Pair(spread * normal(rows, count), spread * normal(rows, count, seed=1))
    equal = Pair(spread * normal(1, count, seed=2), spread * normal(1, count, seed=3))

    def worst_error(gradient: Pair) -> float:
        moved = transport_squares(step, Pair(*(p.square().mean(1, keepdim=True) for p in gradient[:2])))
        exact = Pair(*(p.square().mean(1, keepdim=True) for p in transport(step, gradient)[:2]))
        return max(float((x / y - 1).abs().max()) for x, y in zip(moved[:2], exact[:2], strict=True))

    # The mean of n squares has a relative error of √(2/n) = 0.7 %, and the missing products one of 1/√n each: five
    # of the first cover both.
    assert worst_error(independent) < 5 * (2 / count) ** 0.5
    assert worst_error(equal) > 0.3


def test_second_moments_stay_positive_where_they_were() -> None:
    """Never negative, and a zero only where all rows that come in are zero: m over √0 would explode."""
    step = move(random_element(GROUPS["none"], 20, seed=7))
    squared = Pair(normal(20, 6, 9).square(), normal(20, 6, 9, seed=1).square())
    squared.A[..., 0] = 0
    moved = transport_squares(step, squared)
    assert bool((moved.A[..., 1:] > 0).all())
    assert bool((moved.A[..., 0] == 0).all())
    assert bool((moved.B > 0).all())


def test_the_identity_moves_nothing() -> None:
    eye = torch.eye(6, dtype=torch.float32)
    gradient = Pair(normal(6, 9).float(), normal(6, 9, seed=1).float())
    for result in (transport(Move(eye, eye), gradient), transport_squares(Move(eye, eye), gradient)):
        assert torch.equal(result.A, gradient.A)
        assert torch.equal(result.B, gradient.B)
