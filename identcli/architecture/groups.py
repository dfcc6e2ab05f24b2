"""The groups that act on a pair.

A pair is two stacks of matrices A (…, D, a) and B (…, D, b) that a model uses only through BᵀA, possibly
with a position-dependent rotation between them. S in the group moves (A, B) to (S A, S⁻ᵀ B) and leaves the
model the same.

Without rotations S may be any invertible D×D matrix: GL(D), dimension D² (theory of the paper, 4.2 and 4.5).
With rotary positions S must commute with every rotation: one scaled rotation α·R(θ) for each rotated pair of
rows, dimension 2 a pair (4.8.2), and GL on the rows that are not rotated. One class says all three.
"""

from dataclasses import dataclass
from typing import Literal

from identcli.architecture.errors import UserError

RotaryStyle = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Group:
    """Invertible D×D matrices that commute with the rotations of the first `rotary` rows.

    size: D, the rows of A and B. rotary: rows that positions rotate; 0 gives GL(D), D the fully rotary
    group, anything between the partial one. style: which rows form a pair: `half` (j, j + rotary/2),
    `interleaved` (2j, 2j + 1).

    Distinct non-zero frequencies are assumed, as every published rotary model has them; equal ones would
    enlarge the group.
    """

    size: int
    rotary: int = 0
    style: RotaryStyle = "half"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"head size {self.size}: must be at least 1")
        if not 0 <= self.rotary <= self.size:
            raise UserError(f"rotary size {self.rotary}: must lie between 0 and the head size {self.size}")
        if self.rotary % 2:
            raise UserError(f"rotary size {self.rotary}: must be even, since positions rotate pairs of rows")
        if self.style not in ("half", "interleaved"):
            raise UserError(f"rotary style {self.style!r}: must be 'half' or 'interleaved'")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The rows (a, b) that each rotation mixes, in the order of the frequencies."""
        half = self.rotary // 2
        if self.style == "half":
            return tuple((j, j + half) for j in range(half))
        return tuple((2 * j, 2 * j + 1) for j in range(half))

    @property
    def plain(self) -> int:
        """How many rows no position rotates; they are the last ones."""
        return self.size - self.rotary

    @property
    def dimension(self) -> int:
        """rotary + (D − rotary)²: two for each rotated pair, GL on the rest (theory 6)."""
        return self.rotary + self.plain**2

    def __str__(self) -> str:
        if not self.rotary:
            return f"GL({self.size})"
        scaled = f"{self.rotary // 2} scaled rotations"
        return scaled if not self.plain else f"{scaled} x GL({self.plain})"
