"""`ident audit`: how far the heads of a trained model are from balance."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from identcli.architecture.errors import UserError
from identcli.cli.checkpoint_options import Assume, Circuits, Heads, Layout, Rotary


def audit(
    paths: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="Files, folders with a config.json, runs.")
    ],
    layout: Layout = None,
    heads: Heads = None,
    rotary: Rotary = None,
    assume: Assume = None,
    circuit: Circuits = None,
    series: Annotated[
        bool, typer.Option("--series", help="All checkpoints of a run or folder, by their steps.")
    ] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="A line for each pair instead of each layer.")] = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Also write every pair there, for ident plot.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON: summary and pairs.")] = False,
) -> None:
    """Per layer and kv group: imbalance, how much of it balancing takes away, and what no transformation changes.

    Two checkpoints are set side by side, more are a series. Exit 1 when there is nothing to judge.

    \b
    Examples:
      ident audit path/to/SmolLM2-135M
      ident audit model.pt --layout gpt2 --heads 12
      ident audit before after
      ident audit outputs/run1 --series --parquet audit.parquet
      ident audit path/to/model --json | jq .summary
    """
    from identcli.checkpoints.locate import NoAttention
    from identcli.checkpoints.series import audit_all, members_of
    from identcli.cli import checkpoint_options
    from identcli.cli.progress import Progress

    chosen = [member for path in paths for member in members_of(path)] if series else paths
    flags = checkpoint_options.flags(layout, heads, rotary, assume)
    if parquet is not None and not parquet.absolute().parent.is_dir():
        raise UserError(f"--parquet {parquet}: there is no folder {parquet.absolute().parent}")
    try:
        members = audit_all(
            chosen, flags, checkpoint_options.circuits(circuit), lambda title: Progress(f"audit of {title}")
        )
    except NoAttention as nothing:
        print(nothing, file=sys.stderr)
        raise typer.Exit(1) from None
    if parquet is not None:
        from identcli.store import audits

        rows: list[dict[str, Any]] = []
        for member in members:
            rows += [{"checkpoint": str(member.path), "step": member.step, **vars(row)} for row in member.audit.rows]
        audits.write(parquet, rows, [member.to_dict()["summary"] | {"step": member.step} for member in members])
        print(f"pairs written to {parquet}", file=sys.stderr)
    if as_json:
        from identcli.store.strictjson import to_text

        told = [member.to_dict() for member in members]
        one = {key: told[0][key] for key in ("summary", "pairs")}
        typer.echo(to_text(one if len(told) == 1 else {"checkpoints": told}, indent=2))
        return

    from identcli.cli import audit_table

    audit_table.show(members, by_pair=pairs)
