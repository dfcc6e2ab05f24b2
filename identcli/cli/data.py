"""`ident data`: fetch the corpus, and say what is there."""

import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Fetch Tiny Shakespeare, and say what is in the cache."
)
AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON.")]


@app.command()
def prepare(as_json: AsJson = False) -> None:
    """Put Tiny Shakespeare into the cache, from the first source that has exactly its bytes.

    \b
    Examples:
      ident data prepare
      IDENT_OFFLINE=1 ident data prepare
    """
    from identcli.data import tiny_shakespeare

    _show(tiny_shakespeare.prepare(), as_json)


@app.command()
def status(as_json: AsJson = False) -> None:
    """What is in the cache, and whether its bytes are the right ones. Asks no source; exit 1 if it isn't there.

    \b
    Examples:
      ident data status
      ident data status --json
    """
    from identcli.data import tiny_shakespeare

    found = tiny_shakespeare.status()
    _show(found, as_json)
    raise typer.Exit(0 if found["ok"] else 1)


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(facts, indent=2))
        return
    for note in facts.get("notes", ()):
        print(note, file=sys.stderr)
    for key, value in facts.items():
        if key != "notes":
            typer.echo(f"{key:<16}{'-' if value is None else value}")
