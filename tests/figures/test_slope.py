"""The slope and its interval against slow twins: a numeric integral, a generic least squares, and a trial by lot."""

import math

import numpy as np
import pytest

from identcli.figures.slope import power_law, student_quantile


def integral(t: float, freedom: int) -> float:
    """P(|T| ≤ t) by Simpson's rule on the density, which shares nothing with the closed form."""
    x = np.linspace(0, t, 20001)
    log_constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(log_constant - (freedom + 1) / 2 * np.log1p(x**2 / freedom))
    weight = np.ones_like(x)
    weight[1:-1:2], weight[2:-1:2] = 4, 2
    return float(2 * (weight * density).sum() * (x[1] - x[0]) / 3)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_quantile_encloses_its_probability(freedom: int, confidence: float) -> None:
    # Simpson with 20,000 intervals is good to 1e-8 even for the widest case, t = 64 with one degree of freedom.
    assert integral(student_quantile(confidence, freedom), freedom) == pytest.approx(confidence, abs=1e-7)


@pytest.mark.parametrize(("freedom", "printed"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (120, 1.980)])
def test_the_quantiles_are_those_of_printed_tables(freedom: int, printed: float) -> None:
    assert student_quantile(0.95, freedom) == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.95, 0), (1.0, 3), (0.0, 3)])
def test_no_quantile_where_none_is_defined(confidence: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(confidence, freedom)


def test_fit_equals_a_generic_least_squares() -> None:
    rng = np.random.default_rng(0)
    x = np.array([0.5, 0.25, 0.125, 0.0625, 0.03])
    y = 3e-5 * x**2.2 * np.exp(0.3 * rng.standard_normal(5))
    design = np.stack([np.log(x), np.ones(5)], axis=1)
    solution, (squares,), _, _ = np.linalg.lstsq(design, np.log(y))
    half = student_quantile(0.95, 3) * math.sqrt(squares / 3 * np.linalg.inv(design.T @ design)[0, 0])
    fit = power_law(list(x), list(y))
    assert fit is not None
    assert fit.exponent == pytest.approx(solution[0], rel=1e-10)
    assert fit.scale == pytest.approx(math.exp(solution[1]), rel=1e-10)
    assert (fit.low, fit.high) == pytest.approx((solution[0] - half, solution[0] + half), rel=1e-10)
    np.testing.assert_allclose(fit.at(x), np.exp(design @ solution), rtol=1e-10)


def test_the_interval_covers_in_nineteen_of_twenty_trials_and_a_normal_quantile_would_not() -> None:
    rng = np.random.default_rng(1)
    x = [0.5, 0.25, 0.125, 0.0625]
    trials, covered, naive = 1000, 0, 0
    for _ in range(trials):
        fit = power_law(x, list(np.array(x) ** 2 * np.exp(0.5 * rng.standard_normal(4))))
        assert fit is not None
        covered += fit.low <= 2 <= fit.high
        naive += abs(fit.exponent - 2) <= (fit.high - fit.exponent) * 1.96 / student_quantile(0.95, 2)
    # The standard error of a share of 0.95 in 1,000 trials is 0.007: four of them.
    assert covered / trials == pytest.approx(0.95, abs=0.028)
    assert naive / trials < 0.85


def test_an_exact_power_law_and_what_cant_be_fitted() -> None:
    exact = power_law([1.0, 2.0, 4.0], [3.0, 12.0, 48.0])
    assert exact is not None
    assert exact.exponent == pytest.approx(2)
    assert exact.high - exact.low < 1e-6
    two = power_law([1.0, 2.0], [1.0, 8.0])
    assert two is not None
    assert math.isnan(two.low)
    assert str(two) == "3.0 (two points: no interval)"
    assert power_law([0.5, 0.5], [1.0, 2.0]) is None
    assert power_law([0.5, 0.25], [1.0, math.nan]) is None
    assert power_law([0.5, 0.25], [1.0, 0.0]) is None
