"""The floors against rounding itself: spacing of numbers, and Monte Carlo with a seed."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import GROUPS, attention, normal
from identcli.architecture.groups import Group
from identcli.symmetry.charge import charge
from identcli.symmetry.pair import Pair, difference, squared_norm
from identcli.symmetry.project import project, unidentified_share
from identcli.symmetry.rounding import charge_floor, floors, rounding_variance, share_floor

WEIGHTS = 10.0 ** torch.linspace(-6, 6, 500, dtype=torch.float64) * torch.tensor(
    [1.0, -1.0], dtype=torch.float64
).repeat(250)


def rounded(weights: Tensor, dtype: torch.dtype) -> Tensor:
    return weights.to(dtype).to(weights.dtype)


def variances(pair: Pair, dtype: torch.dtype) -> Pair:
    return Pair(rounding_variance(pair.A, dtype), rounding_variance(pair.B, dtype))


@pytest.mark.parametrize(
    ("dtype", "slow"), [(torch.float32, np.float32), (torch.float64, np.float64), (torch.float16, np.float16)]
)
def test_the_variance_is_a_twelfth_of_the_squared_spacing(dtype: torch.dtype, slow: type) -> None:
    """Slow twin: numpy's distance to the next number. Half precision has no normal numbers outside 6e-5 … 65504."""
    weights = WEIGHTS[(WEIGHTS.abs() > 1e-4) & (WEIGHTS.abs() < 6e4)] if dtype == torch.float16 else WEIGHTS
    stored = rounded(weights, dtype)
    spacing = np.spacing(np.abs(stored.numpy()).astype(slow)).astype(float)
    # Powers of two, exactly represented: no tolerance but the division by 12.
    np.testing.assert_allclose(rounding_variance(stored, dtype).numpy(), spacing**2 / 12, rtol=1e-15)


def test_bfloat16_is_spaced_by_its_8_bits() -> None:
    stored = rounded(WEIGHTS, torch.bfloat16)
    following = (stored.abs().to(torch.bfloat16).view(torch.int16) + 1).view(torch.bfloat16).double()
    expected = (following - stored.abs()).square() / 12
    torch.testing.assert_close(rounding_variance(stored, torch.bfloat16), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("power", [-9, 0, 1, 20])
def test_powers_of_two_take_the_spacing_above_them(power: int) -> None:
    weight = torch.tensor([2.0**power, -(2.0**power)], dtype=torch.float64)
    expected = (2.0 ** (power - 23)) ** 2 / 12
    assert rounding_variance(weight, torch.float32).tolist() == [expected, expected]


def test_zero_is_exact_and_float32_weights_are_taken() -> None:
    weights = torch.tensor([0.0, 1.5, -0.0])
    assert rounding_variance(weights, torch.bfloat16).tolist() == [0, pytest.approx(2.0**-14 / 12, rel=1e-7), 0]
    assert rounding_variance(weights, torch.bfloat16).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_random_weights_has_that_variance(dtype: torch.dtype) -> None:
    weights = 0.02 * normal(100_000)
    error = rounded(weights, dtype) - weights
    predicted = float(rounding_variance(weights, dtype).mean())
    # The mean of n squares of uniform numbers, here spread over several spacings, is off by about 2/√n = 0.6 %.
    assert float(error.square().mean()) == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize("name", GROUPS)
def test_the_charge_floor_is_what_rounding_does(name: str) -> None:
    """Root mean square over 2,000 roundings: the same weights in as many places of their spacing."""
    group = GROUPS[name]
    pair = Pair(0.3 * normal(6, 9), 0.1 * normal(6, 18, seed=1))
    variance = variances(pair, torch.bfloat16)
    draws = torch.Generator().manual_seed(2)

    def noisy(weights: Tensor, variance: Tensor) -> Tensor:
        uniform = torch.rand(2000, *weights.shape, generator=draws, dtype=torch.float64) - 0.5
        return weights + (12 * variance).sqrt() * uniform

    moved = Pair(noisy(pair.A, variance.A), noisy(pair.B, variance.B))
    change = charge(group, moved) - charge(group, pair)
    measured = float(change.square().sum(-1).mean().sqrt())
    # The norm of a charge of 3 to 36 numbers varies by at most half of itself: 0.5/√2000 = 1 %; five of those.
    assert float(charge_floor(group, pair, variance)) == pytest.approx(measured, rel=0.05)


def rounded_update(group: Group, pairs: Pair, spread: float) -> tuple[Pair, Pair]:
    """The weights after an update with no unidentified part, in bfloat16, and the update that this leaves."""
    update = Pair(spread * normal(*pairs.A.shape, seed=2), spread * normal(*pairs.B.shape, seed=3))
    X = project(group, pairs, update).X
    identified = Pair(update.A - X @ pairs.A, update.B + X.mT @ pairs.B)
    assert float(unidentified_share(group, pairs, identified).max()) < 1e-20  # far below any floor here
    exact = Pair(pairs.A + identified.A, pairs.B + identified.B)
    after = Pair(rounded(exact.A, torch.bfloat16), rounded(exact.B, torch.bfloat16))
    return after, difference(after, pairs)


def measured_over_floor(positions: str, pairs: Pair, spread: float) -> float:
    """Mean ρ that rounding gives to 400 updates, over the mean floor."""
    family = attention(4, 2, positions=positions).pair("qk")
    after, stored = rounded_update(family.group, pairs, spread)
    floor = share_floor(variances(after, torch.bfloat16), family.isotropic_share, squared_norm(stored))
    return float(unidentified_share(family.group, pairs, stored).mean() / floor.mean())


@pytest.mark.parametrize("name", GROUPS)
def test_the_share_floor_is_what_rounding_does_to_weights_of_one_spacing(name: str) -> None:
    """All weights between two powers of two: then rounding errors have no preferred direction."""

    def weights(*shape: int, seed: int) -> Tensor:
        size = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return normal(*shape, seed=seed).sign() * (1.2 + 0.6 * size) / 64

    pairs = Pair(weights(400, 6, 18, seed=5), weights(400, 6, 9, seed=6))
    # 400 mean squares of 6 to 36 numbers: √(2/2400) = 3 % at worst; three of those.
    assert measured_over_floor(name, pairs, 2e-4) == pytest.approx(1, rel=0.09)


@pytest.mark.parametrize("name", GROUPS)
def test_normal_weights_lie_above_the_share_floor_by_a_known_factor(name: str) -> None:
    """Spacing grows with a weight, and scaling a row along the orbit moves its large weights most.

    With variances in proportion to W² and normal weights, a direction that moves a row by itself takes up
    E W⁴ / (E W²)² = 3 times the isotropic mean, one that moves a row by another takes up once. That is 1 + 2/D for
    GL(D) and 2 for a rotated pair of rows; spacings that jump by powers of two blur it by a tenth.
    """
    group = GROUPS[name]
    factor = (2 * group.rotary + group.plain * (group.plain + 2)) / group.dimension
    pairs = Pair(0.02 * normal(400, 6, 18), 0.02 * normal(400, 6, 9, seed=1))
    assert measured_over_floor(name, pairs, 1e-3) == pytest.approx(factor, rel=0.15)


def test_a_zero_update_has_no_floor() -> None:
    variance = variances(Pair(torch.zeros(6, 9), torch.zeros(6, 9)), torch.float32)
    assert bool(share_floor(variance, 0.25, torch.zeros(())).isnan())


@pytest.mark.parametrize("name", GROUPS)
def test_floors_of_a_batch_are_those_of_its_pairs(name: str) -> None:
    pair = Pair(normal(3, 6, 9), normal(3, 6, 8, seed=1))
    variance = variances(pair, torch.float32)
    fast = charge_floor(GROUPS[name], pair, variance)
    for i in range(3):
        alone = charge_floor(GROUPS[name], Pair(pair.A[i], pair.B[i]), Pair(variance.A[i], variance.B[i]))
        assert float(fast[i]) == pytest.approx(float(alone), rel=1e-14)  # the same sums


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_floors_at_once_are_the_two(name: str, dtype: torch.dtype) -> None:
    family = attention(4, 2, positions=name).pair("qk")
    pair = Pair(rounded(normal(3, 2, 6, 18), dtype), rounded(normal(3, 2, 6, 9, seed=1), dtype))
    energy = normal(3, 2, seed=2).square()
    variance = variances(pair, dtype)
    both = floors(family, pair, dtype, energy)
    # The same sums of positive numbers, in another order.
    share = share_floor(variance, family.isotropic_share, energy)
    torch.testing.assert_close(both.share, share, rtol=1e-14, atol=0)
    torch.testing.assert_close(both.drift, charge_floor(family.group, pair, variance), rtol=1e-14, atol=0)
