"""Outcomes as rows for JSON, as Markdown, and the errata on their own."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from identcli.theory.claim import Outcome

HOLDS = {True: "holds", False: "FAILS", None: "not decided"}


def number(value: float | None, relation: str = "=") -> str:
    """A value for people: whole numbers in full, others with three digits, a dash for none; ≥ and ≤ in front."""
    if value is None or not math.isfinite(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e9:
        text = f"{int(value):,}"
    else:
        text = f"{value:.4g}" if 0.001 <= abs(value) < 1e5 else f"{value:.1e}"
    return text if relation == "=" else f"{relation} {text}"


def erratum(outcome: Outcome) -> dict[str, str] | None:
    """What the paper prints, why it fails (with the numbers of this run), and what is right."""
    found = outcome.claim.erratum
    if found is None:
        return None
    numbers = {"printed": outcome.printed or 0.0}
    return {"printed": found.printed, "why": found.why.format(**numbers), "right": found.right}


def row(outcome: Outcome) -> dict[str, Any]:
    """One outcome with plain values; undefined numbers are None, and a bound is text: `≥ 0.001`."""
    claim = outcome.claim
    return {
        "id": claim.id,
        "section": claim.section,
        "statement": claim.statement,
        "predicted": _plain(outcome.predicted) if claim.relation == "=" else number(outcome.predicted, claim.relation),
        "measured": _plain(outcome.measured),
        "tolerance": claim.tolerance,
        "holds": outcome.holds,
        "erratum": erratum(outcome),
    }


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def summary(outcomes: Sequence[Outcome]) -> str:
    """`75 claims: 74 hold, 1 fails; 12 errata of the paper`."""
    of = {state: sum(outcome.holds is state for outcome in outcomes) for state in HOLDS}
    parts = [f"{of[True]} hold"] + ([f"{of[False]} fail"] if of[False] else [])
    parts += [f"{of[None]} not decided"] if of[None] else []
    errata = sum(outcome.claim.erratum is not None for outcome in outcomes)
    return f"{len(outcomes)} claims: {', '.join(parts)}" + (f"; {errata} errata of the paper" if errata else "")


def markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """The whole report: what was claimed, predicted, measured and tolerated, and why; then the errata."""
    lines = [f"# {title}", "", summary(outcomes) + ".", ""]
    lines += ["| section | claim | predicted | measured | tolerance | |", "|---|---|---|---|---|---|"]
    for outcome in outcomes:
        claim = outcome.claim
        cells = (
            claim.section,
            f"`{claim.id}` {claim.statement}",
            number(outcome.predicted, claim.relation),
            number(outcome.measured),
            number(claim.tolerance),
            HOLDS[outcome.holds],
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    lines += ["", "## Tolerances and counter-examples", ""]
    for outcome in outcomes:
        claim = outcome.claim
        lines.append(f"- `{claim.id}`: tolerance {number(claim.tolerance)}: {claim.reason}.")
        counter = getattr(claim, "counter", "")
        if counter:
            lines[-1] += f" Must fail, and gave {number(outcome.counter)}: {counter}."
        if outcome.note:
            lines[-1] += f" {HOLDS[outcome.holds]}: {outcome.note}."
    found = errata(outcomes)
    return "\n".join([*lines, "", "# Errata", "", *found]).rstrip() + "\n" if found else "\n".join(lines) + "\n"


def errata(outcomes: Iterable[Outcome]) -> list[str]:
    """Lines of Markdown, a section for each erratum, in the order of the paper."""
    lines = []
    for outcome in outcomes:
        found, claim = erratum(outcome), outcome.claim
        if found is None:
            continue
        lines += [f"## {claim.section} `{claim.id}`", ""]
        lines += [f"- printed: {found['printed']}", f"- why it can't be: {found['why']}", f"- right: {found['right']}"]
        lines += [
            f"- claim `{claim.id}`: {claim.statement}. Predicted {number(outcome.predicted, claim.relation)}; "
            f"the printed "
            f"form gives {number_to_two(outcome.printed)}, the right one holds within {number(claim.tolerance)}.",
            "",
        ]
    return lines


def number_to_two(value: float | None) -> str:
    """Two digits: what stays the same on another machine. Whole numbers in full."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.2g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
