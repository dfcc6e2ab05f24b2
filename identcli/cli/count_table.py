"""The answer of `ident count` for people: one model in full, or several side by side."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from identcli.architecture.count import Count
    from identcli.architecture.equivalence import Equivalent
    from identcli.theory.twin_check import TwinCheck

COLUMNS = 100


def show(found: "Sequence[Count]", checks: "Sequence[TwinCheck | None]", equivalents: "Sequence[Equivalent]") -> None:
    """One count in full; several as a comparison, with what was checked below."""
    console = _console()
    if len(found) == 1:
        _one(console, found[0])
    else:
        _several(console, found)
    for counted, done in zip(found, checks, strict=True):
        if done:
            _check(console, counted, done)
    for counted, single in zip(found, equivalents, strict=False):
        _equivalent(console, counted.architecture.name, single)


def show_list(rows: Sequence[tuple[str, str, str, int]]) -> None:
    """The built-in models: id, name, type, parameters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id (or its last part)", "name", "model_type"):
        table.add_column(name, overflow="fold")
    table.add_column("parameters", justify="right", no_wrap=True)
    for hf_id, name, kind, total in rows:
        table.add_row(hf_id, name, kind, f"{total:,}")
    _console().print(table)


def _console() -> Console:
    width = None if sys.stdout.isatty() else COLUMNS
    return Console(width=width, highlight=False)


def _one(console: Console, counted: "Count") -> None:
    numbers = counted.parameters
    tied = "tied head" if numbers.tied else "untied head" if counted.architecture.head else "no head"
    console.print(Text(counted.architecture.name, style="bold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_column(style="dim")
    facts.add_row("parameters", f"{numbers.total:,}", f"{tied}; every tensor once")
    facts.add_row(
        "without embeddings",
        f"{numbers.without_embeddings:,}",
        "token, position and type tables, and the head, left out",
    )
    if numbers.active != numbers.total:
        facts.add_row("active for one token", f"{numbers.active:,}", "of all experts, those that the router picks")
    facts.add_row("in attention", f"{numbers.attention:,}", "projections with their biases")
    console.print(facts)
    console.print()
    console.print(_families(counted))
    _letters(console, counted)
    console.print()
    outputs = {"log_probs": "log-probabilities", "logits": "logits"}[counted.outputs]
    seen = outputs if counted.architecture.head else "hidden states"
    epsilon = "ε > 0" if counted.eps else "ε = 0"
    least = "at least " if counted.lower_bound else ""
    of = "attention weights" if counted.of != numbers.total else "parameters"
    console.print(f"unidentified  {least}{counted.total:,} of {counted.of:,} {of}, by {seen}, {epsilon}")
    console.print(Text(f"identified    {_percent(counted.identified_share)}", style="bold"))
    _paper(console, counted)
    for label, lines in (("left out", counted.excluded), ("note", counted.architecture.notes)):
        if lines:
            console.print()
            _lines(console, label, lines)


def _families(counted: "Count") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    each_column = [f"{family.each:,}" if family.per_layer else "" for family in counted.families]
    all_column = [f"{'≥ ' if family.only_at_least else ''}{family.dimension:,}" for family in counted.families]
    numbers = max(map(len, each_column), default=0) + max(map(len, all_column), default=0)
    # Rich would rather widen the table than fold a formula.
    words = COLUMNS - numbers - 4 * 2 - 28
    table.add_column("family", overflow="fold", width=28)
    table.add_column("group", overflow="fold", width=words * 11 // 20, style="dim")
    table.add_column("dimension", overflow="fold", width=words - words * 11 // 20)
    table.add_column("each", justify="right", no_wrap=True)
    table.add_column("in all", justify="right", no_wrap=True)
    place = ""
    for family, each, in_all in zip(counted.families, each_column, all_column, strict=True):
        here = f"each of {family.place}" if family.layers > 1 else family.place if family.per_layer else "whole model"
        if here != place:
            table.add_row(Text(here, style="cyan"))
            place = here
        table.add_row(family.title, family.group, str(family.formula), each, in_all)
    return table


def _letters(console: Console, counted: "Count") -> None:
    """The values behind the formulas; a letter that differs between layers has several."""
    values: dict[str, list[str]] = {}
    for family in counted.families:
        for letter, value in family.formula.used.items():
            said = f"{value:,}"
            if said not in values.setdefault(letter, []):
                values[letter].append(said)
    console.print()
    _lines(
        console, "where", [", ".join(f"{letter} = {' or '.join(found)}" for letter, found in sorted(values.items()))]
    )


def _paper(console: Console, counted: "Count") -> None:
    paper = counted.paper
    if "qk" not in counted.only or paper is None or paper.as_it_is == paper.without_rotary_and_groups:
        return
    console.print()
    console.print(
        f"query-key, one layer: {paper.as_it_is:,} as it is; {paper.without_rotary:,} without rotary positions; "
        f"{paper.without_rotary_and_groups:,} without kv groups either"
    )


def _lines(console: Console, label: str, lines: Sequence[str]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold", style="dim")
    for index, line in enumerate(lines):
        table.add_row(label if index == 0 else "", line)
    console.print(table)


def _several(console: Console, found: "Sequence[Count]") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", overflow="fold", min_width=18)
    for name in ("total", "no emb.", "a layer", "qk", "ov", "unidentified", "identified"):
        table.add_column(name, justify="right", no_wrap=True)
    for counted in found:
        families = counted.by_family
        layer = "-" if counted.per_layer is None else f"{counted.per_layer:,}"
        least = "≥ " if counted.lower_bound else ""
        table.add_row(
            counted.architecture.name,
            _short(counted.parameters.total),
            _short(counted.parameters.without_embeddings),
            layer,
            f"{families.get('qk', 0):,}",
            f"{families.get('ov', 0):,}",
            f"{least}{counted.total:,}",
            _percent(counted.identified_share),
        )
    console.print(table)
    notes = [f"{one.architecture.name}: {note}" for one in found for note in one.architecture.notes]
    if notes:
        console.print()
        _lines(console, "note", notes)


def _check(console: Console, counted: "Count", done: "TwinCheck") -> None:
    console.print()
    verdict = Text("holds", style="green") if done.holds else Text("does not hold", style="bold red")
    least = "at least " if counted.lower_bound else ""
    said = (
        f"check  {least}{done.predicted} predicted, {done.measured} measured at a twin of {done.parameters} parameters "
    )
    console.print(Text(said + f"({done.shape}), gap {done.gap:.1e}: ").append_text(verdict))
    if len(done.by_family) and not done.holds:
        console.print(Text(", ".join(f"{name} {n}" for name, n in done.by_family.items()), style="dim"))


def _equivalent(console: Console, name: str, found: "Equivalent") -> None:
    grown = found.weights_single / found.weights
    lines = [
        f"a layer of {name} identifies {found.identified:,} of its {found.weights:,} attention "
        "weights, rotary positions set aside",
        f"one head needs the width E₀ = {found.width:,} for as many: {found.wider:.3f} × {found.embedding:,}, with "
        f"{found.weights_single:,} weights ({grown:.2f} ×) of which {found.identified_single:,} are identified",
    ]
    if not found.reachable:
        lines.append(
            f"at the width {found.embedding:,} it identifies at most 2E² = {2 * found.embedding**2:,}, whatever its "
            "head size: embeddings, norms and MLPs must grow with E₀"
        )
    console.print()
    _lines(console, "single head", lines)


def _short(number: int) -> str:
    """124.4M, 8.19B, 671B: four digits or three."""
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            value = number / size
            return f"{value:.{0 if value >= 100 and letter == 'B' else 1 if value >= 10 else 2}f}{letter}"
    return f"{number:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %"
