"""A formula is text over letters: what is printed is what is computed, so no formula is written twice."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Formula:
    """`text` in Python's notation over the `letters`, with min(·, ·) as the only function.

    >>> str(Formula("G*(R + (D - R)**2)", {"G": 4, "R": 2, "D": 8})), Formula("G*D**2", {"G": 4, "D":
    8}).value ('G·(R + (D − R)²)', 256)
    """

    text: str
    letters: Mapping[str, int] = field(hash=False)

    @property
    def value(self) -> int:
        # The text comes from this package, never from a user; it sees the letters and min, nothing else.
        return int(eval(self.text, {"__builtins__": {}, "min": min}, dict(self.letters)))

    @property
    def used(self) -> dict[str, int]:
        """The letters that occur in the text, with their values."""
        return {letter: value for letter, value in self.letters.items() if re.search(rf"\b{letter}\b", self.text)}

    def __str__(self) -> str:
        text = self.text.replace("**2", "²").replace("//", "/").replace("*", "·")
        return text.replace("-", "−")  # the minus sign, as wide as a plus
