"""What gradient flow conserves: proved on autograd's gradients of a slow attention model."""

import pytest
import torch

from cases import CASES, GROUPS, Case, normal
from identcli.symmetry.charge import charge, grams, imbalance, trace
from identcli.symmetry.pair import Pair, augmented, gather, squared_norm
from slow_attention import first_gradient
from slow_symmetry import commutant, one_by_one, random_element

# Weights and gradients are of order 1 to 10 and a charge sums about 20 products of them, each with 2e-16.
ROUNDING = 1e-12


def weights_and_gradients(case: Case) -> tuple[Pair, Pair]:
    return case.pair(), gather(case.family, first_gradient(case.attention))


def step(pair: Pair, gradient: Pair, rate: float) -> Pair:
    return Pair(pair.A - rate * gradient.A, pair.B - rate * gradient.B)


def rate_of_change(case: Case, pair: Pair, gradient: Pair) -> float:
    """Largest |d charge / dt| of the flow at the start, by autograd, relative to the weights times the gradient."""
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    _, rate = torch.autograd.functional.jvp(lambda t: charge(case.group, step(pair, gradient, t)), zero, one)
    size = (squared_norm(pair) * squared_norm(gradient)).sqrt()
    return float((rate.norm(dim=-1) / size).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient_flow_conserves_the_charge(case: Case) -> None:
    """Noether. With trained biases only the augmented charge is conserved: the biases' share leaves otherwise."""
    pair, gradient = weights_and_gradients(case)
    assert float(squared_norm(gradient).min()) > 1e-2  # or nothing flows
    assert rate_of_change(case, augmented(case.group, pair), augmented(case.group, gradient)) < ROUNDING
    bare = rate_of_change(case, Pair(pair.A, pair.B), Pair(gradient.A, gradient.B))
    assert (bare > 1e-3) == case.biased
    assert (bare < ROUNDING) == (not case.biased)


@pytest.mark.parametrize("case", [c for c in CASES if c.group.rotary], ids=str)
def test_rotary_layers_conserve_no_more_than_their_charge(case: Case) -> None:
    """The whole of C is conserved without rotations only (theory 15)."""
    pair, gradient = (augmented(case.group, part) for part in weights_and_gradients(case))
    change = imbalance(step(pair, gradient, 1e-6)) - imbalance(step(pair, gradient, -1e-6))
    size = 2e-6 * (squared_norm(pair) * squared_norm(gradient)).sqrt()
    assert float((change.flatten(-2).norm(dim=-1) / size).max()) > 1e-3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_step_of_gradient_descent_changes_the_charge_by_that_of_the_gradient(case: Case) -> None:
    """C' − C = lr² (g_A g_Aᵀ − g_B g_Bᵀ), exactly: the first-order term is the one that vanishes."""
    pair, gradient = (augmented(case.group, part) for part in weights_and_gradients(case))
    rate = 0.5
    after = step(pair, gradient, rate)
    change = charge(case.group, after) - charge(case.group, pair)
    expected = rate**2 * charge(case.group, gradient)
    scale = float(squared_norm(after).max() + squared_norm(pair).max())
    torch.testing.assert_close(change, expected, rtol=0, atol=1e-14 * scale)
    assert float(expected.abs().max()) > 1e-3
    if case.group.rotary == 0:
        change = imbalance(after) - imbalance(pair)
        slow = rate**2 * (gradient.A @ gradient.A.mT - gradient.B @ gradient.B.mT)
        torch.testing.assert_close(change, slow, rtol=0, atol=1e-14 * scale)


@pytest.mark.parametrize("name", GROUPS)
def test_the_charge_is_the_moment_map_of_the_group(name: str) -> None:
    """Slow twin: ⟨K, C⟩ for every K of the commutant; the charge holds these numbers and no others.

    ⟨K, C⟩ vanishes for antisymmetric K, so the numbers are those of the symmetric part: one for each rotated pair.
    """
    group = GROUPS[name]
    span = commutant(group).flatten(1)
    pairs = [Pair(normal(6, 8, seed=2 * k), normal(6, 9, seed=2 * k + 1)) for k in range(40)]
    ours = torch.stack([charge(group, pair) for pair in pairs])
    slow = torch.stack([span @ imbalance(pair).flatten() for pair in pairs])
    assert ours.shape[1] == group.rotary // 2 + group.plain**2
    for one, other in ((ours, slow), (slow, ours)):
        # Each set of numbers is a linear function of the other; 40 pairs are more than 36 numbers.
        rest = other - one @ torch.linalg.pinv(one, rcond=1e-10) @ other
        assert float(rest.abs().max()) < 1e-10  # order 10, condition of 40 × 36 random numbers up to 1e3


@pytest.mark.parametrize("name", GROUPS)
def test_charges_as_written_in_loops(name: str) -> None:
    group = GROUPS[name]
    pair = Pair(normal(2, 3, 6, 8), normal(2, 3, 6, 5, seed=1))
    fast = charge(group, pair)
    for index, one in one_by_one(pair):
        C = [[float(one.A[i] @ one.A[j] - one.B[i] @ one.B[j]) for j in range(6)] for i in range(6)]
        pairs = {
            "none": [],
            "half": [(0, 3), (1, 4), (2, 5)],
            "interleaved": [(0, 1), (2, 3), (4, 5)],
            "partial": [(0, 2), (1, 3)],
        }[name]
        slow = [C[i][i] + C[j][j] for i, j in pairs]
        slow += [C[i][j] for i in range(group.rotary, 6) for j in range(group.rotary, 6)]
        assert fast[index].tolist() == pytest.approx(slow, abs=1e-13)  # sums of 13 products of order 1


def test_beta_is_the_norm_of_the_charge_and_tau_the_trace_of_the_imbalance() -> None:
    pair = Pair(normal(2, 6, 8), normal(2, 6, 5, seed=1))
    C = imbalance(pair)
    torch.testing.assert_close(charge(GROUPS["none"], pair).norm(dim=-1), torch.linalg.matrix_norm(C))
    # 78 squares of order 1.
    torch.testing.assert_close(trace(grams(pair)), C.diagonal(dim1=-2, dim2=-1).sum(-1), rtol=0, atol=1e-12)
    assert float(trace(grams(Pair(pair.B, pair.A)))[0]) == -float(trace(grams(pair))[0])


@pytest.mark.parametrize("name", ["half", "interleaved", "partial"])
def test_turning_weights_keeps_a_rotary_charge(name: str) -> None:
    """The compact part of the group, here rotations of each pair of rows, moves no charge on them; scaling does."""
    group = GROUPS[name]
    pair = Pair(normal(6, 8), normal(6, 5, seed=1))
    U, _, Vt = torch.linalg.svd(random_element(group, seed=3))
    numbers = group.rotary // 2
    before = charge(group, pair)[:numbers]
    turned = charge(group, Pair(U @ Vt @ pair.A, U @ Vt @ pair.B))[:numbers]
    torch.testing.assert_close(turned, before, rtol=0, atol=1e-12)  # sums of 26 squares of order 1
    assert float((charge(group, Pair(2 * pair.A, pair.B / 2))[:numbers] - before).abs().min()) > 1


def test_float32_weights_give_a_float32_charge() -> None:
    pair = Pair(normal(6, 8), normal(6, 5, seed=1))
    single = Pair(pair.A.float(), pair.B.float())
    for group in GROUPS.values():
        result = charge(group, single)
        assert result.dtype == torch.float32
        # Sums of 13 to 26 products of order 1, each with 6e-8.
        torch.testing.assert_close(result.double(), charge(group, pair), rtol=0, atol=1e-5)
