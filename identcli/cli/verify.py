"""`ident verify`: the paper's claims, rerun."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from identcli.theory.claim import Outcome

app = typer.Typer(rich_markup_mode=None, help="Rerun the paper's claims, on random weights or on what a run measured.")
Names = Annotated[list[str] | None, typer.Argument(metavar="[SECTION|ID]...", help="Only these: 4.5, or a claim's id.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the random weights.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write a Markdown report there.")]


@app.callback(invoke_without_command=True)
def verify(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--list", help="Name all claims.")] = False,
) -> None:
    """Rerun the paper's claims. Exit 1 when one doesn't hold; what can't be decided is said to be undecided.

    \b
    Examples:
      ident verify lemmas
      ident verify lemmas 4.5 key-bias-irrelevant
      ident verify all --report report.md
      ident verify run outputs/run1
    """
    if show:
        _list()
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def lemmas(names: Names = None, seed: Seed = 0, as_json: AsJson = False, report: Report = None) -> None:
    """The paper's statements on any weights, tried on random ones in float64.

    \b
    Examples:
      ident verify lemmas
      ident verify lemmas 4.5 4.7.1
      ident verify lemmas key-bias-irrelevant --seed 7
    """
    _one_thread()
    from identcli.theory.catalogue import verify_lemmas
    from identcli.theory.trial import LARGE

    _answer(verify_lemmas(LARGE, seed, names or ()), as_json, report, "The paper's lemmas")


def _one_thread() -> None:
    """Small matrices gain nothing from threads, and the results then don't depend on their number."""
    import torch

    torch.set_num_threads(1)


def _list() -> None:
    from identcli.theory.catalogue import lemmas as all_lemmas

    for claim in all_lemmas():
        typer.echo(f"{claim.section:<7}{claim.id:<40}{claim.statement}")


def _answer(outcomes: "Sequence[Outcome]", as_json: bool, report: Path | None, title: str) -> None:
    """Print the outcomes, write the report, and exit 1 when a claim fails."""
    from identcli.theory.report import markdown, row

    if report is not None:
        _write(report, markdown(outcomes, title))
    if as_json:
        typer.echo(json.dumps([row(outcome) for outcome in outcomes], indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _show(outcomes)
    if any(outcome.holds is False for outcome in outcomes):
        raise typer.Exit(1)


def _write(path: Path, text: str) -> None:
    from identcli.architecture.errors import UserError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--report {path}: can't be written: {error.strerror}") from None


_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("?", "yellow")}


def _show(outcomes: "Sequence[Outcome]") -> None:
    """A table of all claims, then the errata, then what fails, then one line that counts."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from identcli.theory.report import erratum, number, summary

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, expand=True)
    table.add_column("", width=1)
    table.add_column("section", width=7)
    table.add_column("claim", ratio=1)
    for name in ("predicted", "measured", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    last = ""
    for outcome in outcomes:
        claim = outcome.claim
        mark, style = _MARKS[outcome.holds]
        table.add_row(
            Text(mark, style=style),
            Text(claim.section if claim.section != last else "", style="bold"),
            Text(claim.statement + (" [erratum]" if claim.erratum else "")),
            Text(number(outcome.predicted, claim.relation)),
            Text(number(outcome.measured)),
            Text(number(claim.tolerance)),
        )
        last = claim.section
    console.print(table)
    corrected = [(outcome, found) for outcome in outcomes if (found := erratum(outcome))]
    if corrected:
        console.print("\nErrata: what the paper prints, why it can't be, what is right", style="bold")
        errata = Table(box=None, pad_edge=False, show_header=False, expand=True)
        errata.add_column(width=7)
        errata.add_column(width=8)
        errata.add_column(ratio=1)
        for outcome, found in corrected:
            for index, part in enumerate(("printed", "why", "right")):
                errata.add_row(
                    Text("" if index else outcome.claim.section, style="bold"),
                    Text(part, style="dim"),
                    Text(found[part]),
                )
            errata.add_row("", "", "")
        console.print(errata)
    for title, state in (("Not decided", None), ("Doesn't hold", False)):
        told = [outcome for outcome in outcomes if outcome.holds is state]
        if told:
            console.print(f"\n{title}", style="bold")
            for outcome in told:
                console.print(Text(f"{outcome.claim.section} {outcome.claim.id}: {outcome.note}"))
    console.print()
    console.print(summary(outcomes), style="bold")
