"""How far an axis reaches, so that panels of one column can be compared, and where a log axis shows an exact zero."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Extent:
    """The limits low < high of an axis. zeros: how many of all values were exactly 0, where a log axis has no place."""

    low: float
    high: float
    log: bool = False
    zeros: int = 0
    values: int = 0

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray], log: bool = False) -> "Extent":
        """The limits that show every finite value (on a log axis: every positive one) with a little air around it.

        Exact zeros on a log axis get a place of their own, `foot`, below all that is positive.
        """
        flat = [np.asarray(array, float).ravel() for array in arrays]
        every = np.concatenate(flat) if flat else np.empty(0)
        every = every[np.isfinite(every)]
        zeros = int((every == 0).sum()) if log else 0
        seen = every[every > 0] if log else every
        if not len(seen):
            return cls(0.1 if log else 0.0, 1.0, log, zeros, len(every))
        low, high = float(seen.min()), float(seen.max())
        if log:
            air = max(10 ** (0.04 * math.log10(high / low)), 1.3)
            return cls(low / air / (10 if zeros else 1), high * air, True, zeros, len(every))
        air = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - air, high + air)

    @property
    def foot(self) -> float:
        """Where a log axis shows an exact zero."""
        return self.low * 1.15

    def shown(self, values: np.ndarray) -> np.ndarray:
        """The values as this axis can show them: on a log axis exact zeros stand at its foot."""
        return np.where(values == 0, self.foot, values) if self.log and self.zeros else values

    def apply(self, axes: Axes) -> None:
        """Give the axes these limits, and few but sufficient ticks."""
        axes.set_yscale("log" if self.log else "linear")
        axes.yaxis.set_major_locator(
            FixedLocator(self._ticks()) if self.log else MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
        )
        if self.log:
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(self._power_of_ten))
        axes.set_ylim(self.low, self.high)

    def _ticks(self) -> list[float]:
        """Powers of ten, at most six, and the foot when something stands there."""
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        first += 1 if self.zeros else 0
        powers = [10.0**exponent for exponent in range(first, last + 1, -(-(last + 1 - first) // 6) or 1)]
        return [self.foot, *powers] if self.zeros else powers

    def _power_of_ten(self, value: float, _: object) -> str:
        """1e-7 → 10⁻⁷ in plain characters: typesetting each as a formula takes longer than drawing all lines."""
        if self.zeros and value == self.foot:
            return "0"
        return "10" + str(round(math.log10(value))).translate(_SUPERSCRIPT)

    def remark(self, what: str) -> str | None:
        """A line for the reader when zeros were moved to the foot."""
        if not self.zeros:
            return None
        return f"{self.zeros} of {self.values} values of {what} are exactly 0: drawn at the foot of the log axis"
