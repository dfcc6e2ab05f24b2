"""Audits as tables."""

import math
import sys
from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from identcli.checkpoints.audit import Audit, Row
from identcli.checkpoints.series import Member, differences


def show(members: Sequence[Member], *, by_pair: bool) -> None:
    """One audit by layers or pairs, two side by side, more as a series; then what stands out and what is left out."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    for member in members:
        if member.same_as is not None:
            print(f"{member.path}: the same bytes as {member.same_as}", file=sys.stderr)
    if len(members) == 1:
        _one(members[0].audit, by_pair, console)
    elif len(members) == 2:
        _two(members[0], members[1], console)
    else:
        _series(members, console)
    for member in members:
        if member.same_as is None:
            _rest(member, console, title=len(members) > 1)


def _one(audit: Audit, by_pair: bool, console: Console) -> None:
    moves = "; ".join(f"{circuit}: {group}" for circuit, group in audit.moves.items())
    console.print(Text(f"{audit.path}: layout {audit.layout}, {len(audit.rows)} pairs ({moves})"))
    names = ["pairs", "imbalance min", "median", "max", "beta", "tau", "removable", "condition"]
    table = _table(["layer", "group", *names[1:2], *names[4:]] if by_pair else ["layer", *names])
    last = None
    for title, rows in _sections(audit.rows, by_pair):
        if title != last:
            table.add_row(Text(title, style="bold"))
            last = title
        table.add_row(*(_pair(rows[0]) if by_pair else _layer(rows)))
    console.print(table)
    for circuit, facts in audit.summary()["circuits"].items():
        least, middle, most = (_number(facts[f"imbalance_{which}"]) for which in ("min", "median", "max"))
        part = _share(facts["removable_median"])
        console.print(
            Text(f"{circuit}: imbalance {least} / {middle} / {most} (min / median / max); balancing removes {part}")
        )


def _sections(rows: Sequence[Row], by_pair: bool) -> Iterable[tuple[str, list[Row]]]:
    """The rows of each line under the title of its circuit and part."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        key = (_title(row), row.layer, row.group if by_pair else -1)
        found.setdefault(key, []).append(row)
    return ((title, some) for (title, _, _), some in found.items())


def _title(row: Row) -> str:
    return f"{row.circuit} {row.part}".strip()


def _layer(rows: Sequence[Row]) -> list[str]:
    known = [row.imbalance for row in rows if math.isfinite(row.imbalance)]
    imbalance = [_number(value) for value in (min(known), median(known), max(known))] if known else ["-"] * 3
    middle = [_number(_median(getattr(row, name) for row in rows)) for name in ("beta", "tau")]
    worst = max((row.condition for row in rows), default=math.nan)
    removable = _share(_median(row.removable for row in rows))
    return [str(rows[0].layer), str(len(rows)), *imbalance, *middle, removable, _number(worst, 3)]


def _pair(row: Row) -> list[str]:
    numbers = [_number(value) for value in (row.imbalance, row.beta, row.tau)]
    return [str(row.layer), str(row.group), *numbers, _share(row.removable), _number(row.condition, 3)]


def _two(first: Member, second: Member, console: Console) -> None:
    pairs = differences(first.audit, second.audit)
    table = _table(["layer", "pairs", "imbalance", "then", "difference", "spectrum changed by"])
    console.print(Text(f"{first.path} and then {second.path}; medians of each layer"))
    by_layer: dict[tuple[str, int], list] = {}
    for pair in pairs:
        by_layer.setdefault((_title(pair.first), pair.first.layer), []).append(pair)
    last = None
    for (title, layer), some in by_layer.items():
        if title != last:
            table.add_row(Text(title, style="bold"))
            last = title
        before, after = (_median(getattr(pair, side).imbalance for pair in some) for side in ("first", "second"))
        changed = max(pair.spectrum for pair in some)
        gap = None if before is None or after is None else after - before
        table.add_row(str(layer), str(len(some)), *(_number(v) for v in (before, after, gap)), _number(changed, 3))
    console.print(table)
    same = max((pair.spectrum for pair in pairs if math.isfinite(pair.spectrum)), default=math.nan)
    console.print(Text(f"spectra of the products differ by at most {_number(same, 3)}; balancing changes none of that"))


def _series(members: Sequence[Member], console: Console) -> None:
    circuits = list(dict.fromkeys(circuit for member in members for circuit in member.audit.circuits))
    table = _table(["step", "checkpoint", *(f"{c} {what}" for c in circuits for what in ("min", "median", "max"))])
    for member in members:
        known = member.audit.summary()["circuits"]
        cells = []
        for circuit in circuits:
            facts = known.get(circuit, {})
            cells += [_number(facts.get(f"imbalance_{which}")) for which in ("min", "median", "max")]
        table.add_row("-" if member.step is None else str(member.step), member.path.name, *cells)
    console.print(table)


def _rest(member: Member, console: Console, *, title: bool) -> None:
    summary = member.audit.summary()
    if title and (summary["stands_out"] or summary["not_audited"]):
        console.print(Text(f"{member.path}:"))
    for one in summary["stands_out"]:
        where = f"{one['circuit']} {one['part']}".strip() + f" layer {one['layer']}, group {one['group']}"
        console.print(Text(f"stands out: {where}: imbalance {_number(one['imbalance'])}, score {one['score']:+.1f}"))
    for one in summary["not_audited"]:
        console.print(Text(f"not audited: {one['what']}: {one['why']}"))
    for note in summary["notes"]:
        print(f"{member.path}: {note}", file=sys.stderr)


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column == "checkpoint" else "right", no_wrap=True)
    return table


def _median(values: Iterable[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else None


def _number(value: float | None, digits: int = 6) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}%"
