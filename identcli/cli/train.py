"""`ident train`: one run."""

import contextlib
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from identcli.architecture.errors import UserError
from identcli.cli.options import Cfg, ConfigDir, Info, Overrides, Package, Resolve, command_line, shown


def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    cfg: Cfg = None,
    package: Package = None,
    resolve: Resolve = False,
    info: Info = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run at its newest checkpoint.")
    ] = None,
) -> None:
    """Train once and measure. Prints the run's folder: outputs/run1, run2, … or outputs/NAME.

    \b
    Examples:
      ident train
      ident train optimizer=sgd lr=0.1 name=first
      ident train case=adamw_rebalanced rebalance.every=100 collect=full
      ident train data=text data.path=poems.txt --cfg job
      ident train --resume outputs/run1 steps=1000

    \b
    Groups: scale=demo|cpu|paper  case=sgd|sgd_decay|adamw|adamw_rebalanced|adamw_state_only
      optimizer=sgd|sgd_decay|adamw  rebalance=off|on|state_only  collect=off|paper|full
      data=tiny_shakespeare|text|markov  experiment=… (see ident sweep)
    """
    words = overrides or []
    if shown(words, config_dir, cfg, package, resolve, info, sweep=False):
        return

    if resume is not None:
        _resume(resume, words, config_dir)

    from identcli.config import launch
    from identcli.config.preflight import single

    checked = single(words, config_dir)

    from identcli.runs import train as runs
    from identcli.runs.place import place

    prepared = runs.prepare(checked.config)
    parallel = prepared.parallel
    folder = parallel.agree(lambda: place(checked.folder, checked.config.name, "run"))
    if parallel.leads:
        typer.echo(folder)
    outcomes = []

    def task(composed: Any) -> None:
        config, _ = launch.launched(composed)
        command = command_line("train", words, config_dir)
        outcomes.append(runs.run(config, folder, command, live=True, prepared=prepared))

    try:
        launch.run(task, checked.words, folder, config_dir)
    except UserError:
        with contextlib.suppress(OSError):  # nothing was written: leave nothing
            folder.rmdir()
        raise
    raise typer.Exit(outcomes[0].exit_code)


def _resume(run: Path, words: list[str], config_dir: Path | None) -> NoReturn:
    if config_dir is not None:
        raise UserError("--config-dir: a resumed run has its config already")

    from identcli.config.preflight import changes
    from identcli.store.folder import one_run

    one_run(run)
    wanted = changes(words)

    from identcli.runs.resume import resume

    outcome = resume(run, wanted, [*command_line("train", words, None), "--resume", str(run)])
    typer.echo(run)
    raise typer.Exit(outcome.exit_code)
