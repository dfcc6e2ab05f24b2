"""`ident` itself: its commands, and what every one of them does with errors.

Nothing heavy is imported here or at the top of a command's file, and of the commands only the one that is asked for:
`ident --help` answers at once.
"""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from identcli import __version__
from identcli.architecture.errors import UserError
from identcli.runs.process import tune

# What `ident --help` says of each command. Its file has the same name, and so has its function there, or else it is a
# Typer of several, `app`.
COMMANDS = {
    "train": "Train once and measure.",
    "sweep": "Train once for every combination of the values given.",
    "plot": "Draw the figures that the stored runs allow.",
    "sample": "Write text with the newest checkpoint of a run.",
    "runs": "List runs: state, case, learning rate, steps, losses.",
    "count": "How many parameters of a model are identified, and why.",
    "audit": "Per head: imbalance, and what balancing would take away.",
    "rebalance": "Write a checkpoint with every head at its balanced point.",
    "verify": "Rerun the paper's claims.",
    "data": "Fetch Tiny Shakespeare, and say what is in the cache.",
}


class Commands(TyperGroup):
    """The COMMANDS, each imported when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # typer looks here for similar names

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _imported(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _imported(name: str) -> Any:
    module = import_module(f"identcli.cli.{name}")
    command = getattr(module, "app", None)
    if command is None:
        command = typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(name)(getattr(module, name))
    return typer.main.get_command(command)


app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)


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
