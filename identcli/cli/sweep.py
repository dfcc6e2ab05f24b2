"""`ident sweep`: many runs."""

import sys

import typer

from identcli.cli.options import Cfg, ConfigDir, Info, Overrides, Package, Resolve, command_line, shown


def sweep(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    cfg: Cfg = None,
    package: Package = None,
    resolve: Resolve = False,
    info: Info = None,
) -> None:
    """Train many times, once for every combination of the values given. Prints the sweep's folder: outputs/sweep1, …

    \b
    Examples:
      ident sweep optimizer=sgd lr=0.5,0.25
      ident sweep case=sgd,adamw seed=1,2,3 hydra/launcher=joblib threads=1
      ident sweep experiment=fig4
      ident sweep 'model.n_head=choice(2,4,8)' 'seed=range(0,3)' name=heads

    \b
    Experiments: experiment=demo|fig2|fig3|fig4|intervals
      What the command line says wins: lr=… replaces the lr of every point of an experiment.
      Points that come out equal run once. A point that fails doesn't stop the others.
    """
    words = overrides or []
    if shown(words, config_dir, cfg, package, resolve, info, sweep=True):
        return

    from identcli.config.preflight import many

    plan = many(words, config_dir)

    from identcli.runs import sweep as runs

    runs.prepare(plan)
    folder = runs.claim(plan, command_line("sweep", words, config_dir))
    typer.echo(folder)
    report = runs.run(plan, folder, config_dir)

    from identcli.cli.table import show

    show(report.rows, to=sys.stderr, by_overrides=True)
    for row in report.bad:
        log = row.folder / "run.log"
        where = f" (log: {log})" if log.is_file() else ""
        print(f"{row.state}: {row.folder.name}{f': {row.error}' if row.error else ''}{where}", file=sys.stderr)
    if report.error:
        print(f"the launcher broke down: {report.error} (log: {folder / 'sweep.log'})", file=sys.stderr)
    raise typer.Exit(report.exit_code)
