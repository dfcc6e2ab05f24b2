"""What `ident audit` and `ident rebalance` take alike."""

from typing import TYPE_CHECKING, Annotated

import typer

from identcli.architecture.errors import UserError

if TYPE_CHECKING:
    from identcli.architecture.pairs import Circuit
    from identcli.checkpoints.locate import Flags

Layout = Annotated[
    str | None, typer.Option("--layout", metavar="NAME", help="How attention is stored, when no config.json says.")
]
Heads = Annotated[
    str | None,
    typer.Option("--heads", metavar="H[/G]", help="Heads, and kv groups if fewer, when no config.json says."),
]
Rotary = Annotated[
    int | None,
    typer.Option("--rotary", metavar="N", help="Rows of a head that positions rotate, when no config.json says."),
]
Assume = Annotated[
    str | None,
    typer.Option("--assume", metavar="KEYS", help="Keys that config.json leaves out: take the class defaults."),
]
Circuits = Annotated[
    list[str] | None, typer.Option("--circuit", metavar="qk|ov", help="Only this circuit; both if not given.")
]


def flags(layout: str | None, heads: str | None, rotary: int | None, assume: str | None) -> "Flags":
    """The options in place of a config."""
    from identcli.checkpoints.locate import Flags

    numbers: list[int | None] = [None, None]
    if heads is not None:
        parts = heads.split("/")
        if len(parts) > 2 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
            raise UserError(f"--heads {heads}: must be a number of heads, or heads/kv groups, as 9/3")
        numbers[: len(parts)] = [int(part) for part in parts]
    keys = tuple(key.strip() for key in assume.split(",") if key.strip()) if assume else ()
    return Flags(layout, numbers[0], numbers[1], rotary, keys)


def circuits(chosen: list[str] | None) -> "list[Circuit]":
    """The circuits asked for, all of them if none is."""
    from identcli.checkpoints.locate import CIRCUITS

    for one in chosen or ():
        if one not in CIRCUITS:
            raise UserError(f"--circuit {one}: must be qk or ov")
    return [one for one in CIRCUITS if not chosen or one in chosen]
