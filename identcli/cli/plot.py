"""`ident plot`: figures of what is stored."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from identcli.architecture.errors import UserError


def plot(
    paths: Annotated[list[Path] | None, typer.Argument(help="Runs, sweeps, or folders of runs.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the figures; else PATH/figures.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--figure", "--only", help="Only this figure: 1, 2, 3, 4 or intervals. Again for more."),
    ] = None,
    latest: Annotated[bool, typer.Option("--latest", help="The newest run or sweep in outputs/.")] = False,
) -> None:
    """Draw the figures that the stored runs allow, as PNG and PDF, and print where they are.

    \b
    Examples:
      ident plot outputs/run1
      ident plot outputs/sweep1 --figure 4
      ident plot --figure 1                   identified share against published scores; needs no run
      ident plot outputs/run1 outputs/run2 --out figures
      ident plot --latest
    """
    chosen = [*(paths or []), *([newest()] if latest else [])]
    from identcli.figures import draw

    drawn = draw(chosen, out, list(only or []))
    for note in drawn.notes:
        print(note, file=sys.stderr)
    for file in drawn.files:
        typer.echo(file)


def newest(outputs: Path = Path("outputs")) -> Path:
    """The run or sweep in `outputs` that was started last."""
    from identcli.store import record
    from identcli.store.folder import is_run, is_sweep

    started = {}
    for folder in outputs.iterdir() if outputs.is_dir() else ():
        if is_run(folder):
            started[folder] = record.read_status(folder)["started"]
        elif is_sweep(folder):
            started[folder] = record.read_sweep(folder)["started"]
    if not started:
        raise UserError(f"{outputs}: no run there yet: ident train makes one")
    return max(started, key=lambda folder: str(started[folder]))
