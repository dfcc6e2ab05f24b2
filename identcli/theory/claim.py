"""A claim of the paper as something that runs: what it predicts, what is measured, and what must fail beside it.

A `Lemma` is a function with a statement. It returns a `Finding`; the tolerance, argued in words, stands in the lemma.
The finding holds a counter-example, measured in the same way: a lemma that its counter-example satisfies too says
nothing and is reported as failing. Where the paper prints something else than what is true, the lemma is the corrected
form, and the printed form is a second counter-example.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from identcli.theory.trial import Size, Trial

Relation = Literal["=", "≥", "≤"]


@dataclass(frozen=True)
class Erratum:
    """What the paper prints, why it can't be, and what is right.

    In `why` and `right` {printed} stands for the number that the printed form gave, {predicted} for what it should be.
    """

    printed: str
    why: str
    right: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement with its section of the paper, its tolerance and the reason for it.

    relation: how the measured value must relate to the predicted one; "=" means |measured − predicted| ≤ tolerance.
    """

    id: str
    section: str
    statement: str
    tolerance: float
    reason: str
    relation: Relation = "="
    erratum: Erratum | None = None

    def satisfied(self, predicted: float, measured: float) -> bool:
        """Whether a measured value agrees with the predicted one; NaN never does."""
        if self.relation == "≥":
            return measured >= predicted - self.tolerance
        if self.relation == "≤":
            return measured <= predicted + self.tolerance
        return abs(measured - predicted) <= self.tolerance


@dataclass(frozen=True)
class Outcome:
    """The answer to a claim: holds is True, False, or None when what was measured can't decide it.

    counter, printed: what the counter-example and the paper's printed form gave. note says why a claim fails or isn't
    decided, or adds a number that is worth knowing.
    """

    claim: Claim
    predicted: float | None
    measured: float | None
    holds: bool | None
    counter: float | None = None
    printed: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What one run of a lemma gave. `counter`: the counter-example's number; `printed`: that of the printed form."""

    predicted: float
    measured: float
    counter: float
    printed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Lemma(Claim):
    """A claim about any weights, tried on random ones. counter: in words, the counter-example that must fail."""

    counter: str
    test: Callable[[Trial], Finding]

    def run(self, size: Size, seed: int = 0) -> Outcome:
        """Test the claim. What is drawn depends on the seed and the claim alone, not on which others are run."""
        trial = Trial(size, zlib.crc32(f"{seed} {self.id}".encode()))
        try:
            found = self.test(trial)
        except (ArithmeticError, IndexError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            return Outcome(self, None, None, False, note=f"can't be computed: {text}")
        faults = []
        if not self.satisfied(found.predicted, found.measured):
            faults.append(f"measured {found.measured:.6g} against {self.relation} {found.predicted:.6g}")
        for what, value in (("the counter-example", found.counter), ("the printed form", found.printed)):
            if value is not None and (math.isnan(value) or self.satisfied(found.predicted, value)):
                faults.append(f"{what} doesn't fail ({value:.6g}), so the claim says nothing")
        return Outcome(
            self,
            found.predicted,
            found.measured,
            holds=not faults,
            counter=found.counter,
            printed=found.printed,
            note="; ".join(faults),
        )


def lemma(
    section: str,
    statement: str,
    *,
    tolerance: float,
    reason: str,
    counter: str,
    relation: Relation = "=",
    erratum: Erratum | None = None,
) -> Callable[[Callable[[Trial], Finding]], Lemma]:
    """Make a lemma of the function below; its id is the function's name with hyphens."""

    def made(test: Callable[[Trial], Finding]) -> Lemma:
        return Lemma(
            id=test.__name__.replace("_", "-"),
            section=section,
            statement=statement,
            tolerance=tolerance,
            reason=reason,
            relation=relation,
            erratum=erratum,
            counter=counter,
            test=test,
        )

    return made
