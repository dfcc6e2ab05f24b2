"""`ident train`: one run."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from identcli.architecture.errors import UserError
from identcli.cli.options import Cfg, ConfigDir, Info, Overrides, Package, Resolve, command_line, shown

if TYPE_CHECKING:
    from identcli.config.preflight import Single


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
      ident train scale=paper device=cuda processes=4

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

    from identcli.config.preflight import single

    checked = single(words, config_dir)
    raise typer.Exit(_in_all(checked.config.processes, lambda: _train(checked, words, config_dir)))


def _train(checked: "Single", words: list[str], config_dir: Path | None) -> int:
    from identcli.config import launch
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
    return outcomes[0].exit_code


def _resume(run: Path, words: list[str], config_dir: Path | None) -> NoReturn:
    if config_dir is not None:
        raise UserError("--config-dir: a resumed run has its config already")

    from identcli.config.preflight import changes
    from identcli.runs.resume import processes, resume
    from identcli.store.folder import one_run
    from identcli.training.parallel import told

    one_run(run)
    wanted = changes(words)

    def go_on() -> int:
        outcome = resume(run, wanted, [*command_line("train", words, None), "--resume", str(run)])
        if told().leads:
            typer.echo(run)
        return outcome.exit_code

    raise typer.Exit(_in_all(processes(run, wanted), go_on))


def _in_all(processes: int, train: Callable[[], int]) -> int:
    """The exit status of `train`, called here, or in each of several processes where torchrun hasn't started them."""
    if started := int(os.environ.get("WORLD_SIZE", "0")):
        if processes not in (1, started):
            raise UserError(f"processes={processes}: but {started} were started, by torchrun")
        return train()
    if processes == 1:
        return train()

    import identcli.runs.resume  # noqa: F401  # imported once, here: each child begins with it
    from identcli.config.errors import ConfigErrors
    from identcli.runs.apart import Ended, apart
    from identcli.training.parallel import places

    try:
        return int(apart(train, places=places(processes)))
    except Ended as ended:
        if ended.wrong:
            raise ConfigErrors(ended.wrong) from None
        print(ended.log or f"error: {ended}", file=sys.stderr)
        return 130 if ended.asked else 1
