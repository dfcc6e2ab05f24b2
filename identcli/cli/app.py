"""`ident` itself: its commands, and what every one of them does with errors.

Nothing heavy is imported here or at the top of a command's file: `ident --help` answers at once.
"""

import sys
from typing import Annotated

import typer

from identcli import __version__
from identcli.architecture.errors import UserError
from identcli.cli import data, verify
from identcli.cli.audit import audit
from identcli.cli.count import count
from identcli.cli.plot import plot
from identcli.cli.rebalance import rebalance
from identcli.cli.runs import runs
from identcli.cli.sample import sample
from identcli.cli.sweep import sweep
from identcli.cli.train import train
from identcli.runs.process import tune

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (train, sweep, plot, sample, runs, count, audit, rebalance):
    app.command()(command)
app.add_typer(verify.app, name="verify")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def ident(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Which parameters of attention mean something: train, measure, rebalance, verify.

    \b
    Examples:
      ident train optimizer=sgd
      ident sweep optimizer=sgd lr=0.5,0.25
      ident plot outputs/run1
      ident verify lemmas
      ident count gpt2 Llama-2-70b-hf
      ident audit path/to/a/checkpoint
    """
    if version:
        typer.echo(f"ident {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage or config, 130 interrupted."""
    tune()
    sys.exit(answer(sys.argv[1:]))


def answer(arguments: list[str]) -> int:
    """Run one command line and return its exit status. Bad input is told in one line per error, without a traceback."""
    try:
        return int(app(arguments, prog_name="ident", standalone_mode=False) or 0)
    except UserError as error:
        return _wrong(getattr(error, "messages", None) or [str(error)])
    except typer.TyperException as error:  # the command line's own grammar
        said = error.format_message()
        return _wrong([said[:1].lower() + said[1:].rstrip(".")])
    except (KeyboardInterrupt, typer.Abort):
        return 130


def _wrong(messages: list[str]) -> int:
    for message in messages:
        print(f"error: {message}", file=sys.stderr)
    return 2
