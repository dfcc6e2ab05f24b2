"""`ident runs`: what lies in a folder."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def runs(
    path: Annotated[Path, typer.Argument(help="A folder of runs, a sweep, or one run.")] = Path("outputs"),
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """List runs with their state, case, learning rate, steps and last losses; of one run, show all of it.

    A run that says running but whose process is gone is lost. Of one that didn't finish, the end of its log is shown.

    \b
    Examples:
      ident runs
      ident runs outputs/sweep1
      ident runs outputs/run1
      ident runs --json | jq '.[] | select(.state != "finished")'
    """
    from identcli.runs.listing import rows
    from identcli.store.folder import is_run

    found = rows(path)
    if as_json:
        typer.echo(json.dumps([row.to_dict() for row in found], indent=2, ensure_ascii=False))
        return

    from identcli.cli.table import duration, show

    if not is_run(path):
        show(found, to=sys.stdout)
        return

    import yaml

    from identcli.store.record import read_config

    [row] = found
    facts = {
        "folder": row.folder,
        "what": row.label or "-",
        "state": row.state,
        "step": f"{row.step} of {row.steps}",
        "train loss": "-" if row.train_loss is None else f"{row.train_loss:.4f}",
        "val loss": "-" if row.val_loss is None else f"{row.val_loss:.4f}",
        "time": duration(row.elapsed_s),
        "last sign": f"{duration(row.age_s)} ago",
        "error": row.error or "-",
    }
    for name, value in facts.items():
        typer.echo(f"{name:<11}{value}")
    if row.state not in ("finished", "running") and (log := _end_of(path / "run.log")):
        typer.echo("\n" + log)
    typer.echo()
    typer.echo(yaml.safe_dump(read_config(path), sort_keys=False, allow_unicode=True).rstrip())


def _end_of(log: Path, lines: int = 15) -> str:
    """The last lines of a run's log, where a traceback ends."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-lines:])
    except OSError:
        return ""
