"""`ident rebalance`: the same model, balanced, with the proof beside it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from identcli.cli.checkpoint_options import Assume, Circuits, Heads, Layout, Rotary

if TYPE_CHECKING:
    from identcli.checkpoints.certificate import Certificate


def rebalance(
    checkpoint: Annotated[Path, typer.Argument(help="A file, a folder with a config.json, an adapter, a run.")],
    out: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")],
    layout: Layout = None,
    heads: Heads = None,
    rotary: Rotary = None,
    assume: Assume = None,
    circuit: Circuits = None,
    check_outputs: Annotated[
        bool, typer.Option("--check-outputs", help="Also run both models on the same inputs, with transformers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The certificate as JSON.")] = False,
) -> None:
    """Write the model with every head at the nearest balanced point: the same function, names, dtypes and files.

    What can't be balanced is left as it is, and said. The certificate says what changed, and by how much; it is written
    to OUT as well. Exit 1 when there is nothing to balance.

    \b
    Examples:
      ident rebalance path/to/MiniLM balanced
      ident rebalance path/to/MiniLM balanced --check-outputs
      ident rebalance model.pt balanced.pt --layout nanogpt --heads 12 --circuit qk
    """
    from identcli.checkpoints import rebalance as rebalancing
    from identcli.checkpoints.locate import NoAttention
    from identcli.cli import checkpoint_options
    from identcli.cli.progress import Progress

    check = None
    if check_outputs:
        from identcli.checkpoints.outputs import compare

        check = compare
    flags = checkpoint_options.flags(layout, heads, rotary, assume)
    chosen = checkpoint_options.circuits(circuit)
    try:
        certificate = rebalancing.rebalance(checkpoint, out, flags, chosen, check, Progress("rebalancing"))
    except NoAttention as nothing:
        print(nothing, file=sys.stderr)
        raise typer.Exit(1) from None
    typer.echo(certificate.to_json() if as_json else "\n".join(_lines(certificate)))


def _lines(certificate: "Certificate") -> list[str]:
    """The certificate in words."""
    lines = [f"{certificate.written}: {certificate.source} balanced, layout {certificate.layout}"]
    for circuit, facts in certificate.summary().items():
        before, after, stored = (
            f"{_number(facts[f'imbalance_{when}_median'])} (at most {_number(facts[f'imbalance_{when}_max'])})"
            for when in ("before", "after", "stored")
        )
        lines += [
            f"{circuit}: {facts['moved']} of {facts['pairs']} pairs moved",
            f"  imbalance, median   {before} before; {after} after, in float64; {stored} as stored",
            f"  change of products  at most {_number(facts['change_max'])} in float64; "
            f"{_number(facts['change_stored_max'])} as stored",
        ]
    if certificate.outputs:
        names = ("exact", "stored", "stored_in_float32", "baseline_float32", "scale")
        exact, stored, in_float32, baseline, scale = (_number(certificate.outputs[name]) for name in names)
        lines += [
            f"outputs, largest change (run by {certificate.outputs['run_by']}; largest output {scale})",
            f"  moved in float64 {exact}; as stored {stored} in float64 and {in_float32} in float32",
            f"  baseline, the original in float32 against float64: {baseline}",
        ]
    lines += [f"not balanced: {one.what}: {one.why}" for one in certificate.skipped]
    return lines + [f"note: {note}" for note in certificate.notes]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-"
