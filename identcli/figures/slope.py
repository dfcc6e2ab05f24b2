"""The exponent of a power law from a handful of points, with an interval that admits how few they are.

Claim: y ≈ c·xᵖ is a straight line in log x, log y. p is its least-squares slope, and with n points
p ± t·s/√Σ(log x − mean)² covers the true exponent in 95 % of trials when the residuals of log y are independent and
normal, where s² = Σ residual²/(n − 2) and t is the quantile of Student's distribution with n − 2 degrees of freedom.
For four points t is 4.30 rather than 1.96, which is why it isn't approximated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Slope:
    """y ≈ scale · x^exponent; low and high bound the exponent, both NaN with two points, which leave no residual."""

    exponent: float
    low: float
    high: float
    scale: float
    points: int

    def at(self, x: np.ndarray) -> np.ndarray:
        """The fitted y at x."""
        return self.scale * x**self.exponent

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.exponent:.1f} (two points: no interval)"
        return f"{self.exponent:.1f} (95 %: {self.low:.1f} … {self.high:.1f})"


def power_law(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Slope | None:
    """Fit log y = log c + p·log x through the points whose x and y are positive and finite.

    None when fewer than two different x remain, since no slope is defined then.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    good = np.isfinite(xs) & np.isfinite(ys) & (xs > 0) & (ys > 0)
    if len(set(xs[good])) < 2:
        return None
    u, v = np.log(xs[good]), np.log(ys[good])
    spread = float(((u - u.mean()) ** 2).sum())
    exponent = float(((u - u.mean()) * (v - v.mean())).sum() / spread)
    residual = v - v.mean() - exponent * (u - u.mean())
    freedom = len(u) - 2
    half = math.nan
    if freedom > 0:
        half = student_quantile(confidence, freedom) * math.sqrt(float((residual**2).sum()) / freedom / spread)
    scale = math.exp(float(v.mean() - exponent * u.mean()))
    return Slope(exponent, exponent - half, exponent + half, scale, len(u))


def student_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = confidence for Student's distribution with `freedom` ≥ 1 degrees of freedom.

    Found by bisection on the angle θ = atan(t/√freedom), in which the probability is smooth and bounded.
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile for confidence {confidence} and {freedom} degrees of freedom")
    low, high = 0.0, math.pi / 2
    for _ in range(100):  # each step halves the interval; float64 has no more to give after about 55
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(theta: float, freedom: int) -> float:
    """P(|T| ≤ √ν·tan θ): for a whole number ν of degrees of freedom a finite sum of powers of cos θ.

    ν even: sin θ·(1 + 1/2·cos²θ + 1·3/(2·4)·cos⁴θ + … + cos^(ν−2)θ)
    ν odd:  2/π·(θ + sin θ·(cos θ + 2/3·cos³θ + 2·4/(3·5)·cos⁵θ + … + cos^(ν−2)θ))
    """
    cosine, odd = math.cos(theta), freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    value = math.sin(theta) * total
    return 2 / math.pi * (theta + value) if odd else value
