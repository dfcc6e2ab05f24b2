"""`ident sweep`: many runs."""

import os
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from identcli.architecture.errors import UserError
from identcli.cli.options import Cfg, ConfigDir, Info, Overrides, Package, Resolve, command_line, shown

if TYPE_CHECKING:
    from identcli.runs.sweep import Report


def sweep(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    cfg: Cfg = None,
    package: Package = None,
    resolve: Resolve = False,
    info: Info = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="SWEEP", help="Run what this sweep has not finished.")
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Start no further point once one has failed; running ones go on.")
    ] = False,
) -> None:
    """Train many times, once for every combination of the values given. Prints the sweep's folder: outputs/sweep1, …

    \b
    Examples:
      ident sweep optimizer=sgd lr=0.5,0.25
      ident sweep case=sgd,adamw seed=1,2,3 hydra/launcher=local threads=1
      ident sweep scale=paper seed=1,2 device=cuda processes=4
      ident sweep experiment=fig4
      ident sweep 'model.n_head=choice(2,4,8)' 'seed=range(0,3)' name=heads
      ident sweep --resume outputs/sweep1
      ident sweep --resume outputs/sweep1 hydra.launcher.n_jobs=1

    \b
    Experiments: experiment=demo|fig2|fig3|fig4|intervals
      What the command line says wins: lr=… replaces the lr of every point of an experiment.
      Points that come out equal run once. A point that fails, or is killed, doesn't stop the others.

    \b
    Launchers: hydra/launcher=basic|local|joblib|submitit_local|submitit_slurm|ray (docs/CLUSTER.md)
    """
    words = overrides or []
    if shown(words, config_dir, cfg, package, resolve, info, sweep=True):
        return

    if resume is not None and config_dir is not None:
        raise UserError("--config-dir: a sweep that is resumed has its points already")

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("ident sweep under torchrun: each process would run all of it; processes=… is for its points")

    from identcli.runs import sweep as runs

    if resume is not None:
        report = runs.resume(resume, words, fail_fast)
        typer.echo(resume)
    else:
        from identcli.config.preflight import many

        plan = many(words, config_dir)
        runs.prepare(runs.configs(plan))
        folder = runs.claim(plan, command_line("sweep", words, config_dir), words, config_dir, fail_fast)
        typer.echo(folder)
        report = runs.run(plan, folder, config_dir)
    _show(report)
    raise typer.Exit(report.exit_code)


def _show(report: "Report") -> None:
    """A table of all points, a line for each that isn't done, and last the command that goes on with them."""
    from identcli.cli.table import show

    show(report.rows, to=sys.stderr, by_overrides=True)
    for row in report.bad:
        log = row.folder / "run.log"
        what, why = " ".join(row.overrides) or row.folder.name, f": {row.error}" if row.error else ""
        print(f"{row.state}: {what}{why}{f' (log: {log})' if log.is_file() else ''}", file=sys.stderr)
    if report.error:
        print(f"the launcher broke down: {report.error} (log: {report.folder / 'sweep.log'})", file=sys.stderr)
    if report.bad:
        states = Counter(row.state for row in report.rows)
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        print(f"of {len(report.rows)} points: {told}", file=sys.stderr)
    if report.resumable:
        print(f"ident sweep --resume {shlex.quote(str(report.folder))}", file=sys.stderr)
