"""Runs as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from identcli.runs.listing import Row

_COLOURS = {"finished": "green", "running": "cyan", "interrupted": "yellow"}


def show(rows: "Sequence[Row]", to: TextIO, *, by_overrides: bool = False) -> None:
    """A line for each run: what it is, its state, steps done, last losses, time. Undefined values are a dash."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    first = ["run"] if not by_overrides else ["point"]
    for name in [*first, "case", "lr"] if not by_overrides else first:
        table.add_column(name, overflow="fold")
    for name in ("state", "step", "train", "val", "time", "age")[: 5 if by_overrides else 6]:
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for row in rows:
        what = [" ".join(row.overrides) or row.folder.name] if by_overrides else [str(row.folder)]
        if not by_overrides:
            what += [row.case or "-", "-" if row.lr is None else f"{row.lr:g}"]
        steps = "-" if row.step is None else f"{row.step}/{row.steps}"
        losses = ["-" if loss is None else f"{loss:.4f}" for loss in (row.train_loss, row.val_loss)]
        times = [duration(row.elapsed_s)] + ([] if by_overrides else [duration(row.age_s)])
        state = Text(row.state, style=_COLOURS.get(row.state, "red"))
        table.add_row(*(Text(cell) for cell in what), state, *(Text(cell) for cell in [steps, *losses, *times]))
    console = Console(file=to, width=None if to.isatty() else 200)
    console.print(table)


def duration(seconds: float | None) -> str:
    """`51 s`, `12 min`, `3.2 h`, `5.1 d`."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds:.0f} s"
