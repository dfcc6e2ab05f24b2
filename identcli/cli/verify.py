"""`ident verify`: the paper's claims, rerun."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from identcli.theory.claim import Outcome
    from identcli.theory.counting import Count

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Names = Annotated[list[str] | None, typer.Argument(metavar="[SECTION|ID]...", help="Only these: 4.5, or a claim's id.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the random weights.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write a Markdown report there.")]
Processes = Annotated[int, typer.Option("--processes", min=1, help="How many at once.")]
CORES = os.cpu_count() or 1


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
def lemmas(
    names: Names = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    report: Report = None,
    errata: Annotated[
        Path | None, typer.Option("--errata", metavar="FILE", help="Also write the paper's errata there.")
    ] = None,
) -> None:
    """The paper's statements on any weights, tried on random ones in float64.

    \b
    Examples:
      ident verify lemmas
      ident verify lemmas 4.5 4.7.1
      ident verify lemmas key-bias-irrelevant --seed 7
    """
    outcomes = _lemmas(names or (), seed)
    if errata is not None:
        from identcli.theory.errata import document

        _write(errata, document(outcomes))
    _answer(outcomes, as_json, report, "The paper's lemmas")


@app.command()
def counts(seed: Seed = 0, processes: Processes = CORES, as_json: AsJson = False, report: Report = None) -> None:
    """Closed forms of what is unidentified against the numerical rank, over a grid of attention layers.

    \b
    Examples:
      ident verify counts
      ident verify counts --seed 7 --json
    """
    from identcli.theory.counting import verify_counts

    _answer([], as_json, report, "Unidentified parameters, counted", verify_counts(seed, processes))


@app.command()
def run(path: Path, as_json: AsJson = False, report: Report = None) -> None:
    """The paper's statements on training, judged by what one run has stored.

    \b
    Examples:
      ident verify run outputs/run1
    """
    from identcli.theory.recorded import load_one
    from identcli.theory.run_claims import verify_run

    found = load_one(path)
    _answer(verify_run(found), as_json, report, f"{path}: {found.title}")


@app.command()
def sweep(path: Path, as_json: AsJson = False, report: Report = None) -> None:
    """The paper's statements on training, judged by all runs of a sweep or a folder, and by comparing them.

    \b
    Examples:
      ident verify sweep outputs/sweep1
    """
    from identcli.theory.recorded import load
    from identcli.theory.sweep_claims import verify_sweep

    found = load(path)
    _answer(verify_sweep(found), as_json, report, f"{path}: {len(found)} runs")


@app.command("all")
def everything(seed: Seed = 0, processes: Processes = CORES, as_json: AsJson = False, report: Report = None) -> None:
    """All that needs no run: lemmas and counts.

    \b
    Examples:
      ident verify all
      ident verify all --report report.md
    """
    from identcli.theory.counting import verify_counts

    _answer(_lemmas((), seed), as_json, report, "The paper's claims", verify_counts(seed, processes))


def _lemmas(names: Sequence[str], seed: int) -> "list[Outcome]":
    import torch

    from identcli.theory.catalogue import verify_lemmas
    from identcli.theory.trial import LARGE

    # Small matrices gain nothing from threads, and the results then don't depend on their number.
    torch.set_num_threads(1)
    return verify_lemmas(LARGE, seed, names)


def _list() -> None:
    from identcli.theory.catalogue import lemmas as all_lemmas
    from identcli.theory.run_claims import run_claims
    from identcli.theory.sweep_claims import sweep_claims

    for command, claims in (("lemmas", all_lemmas()), ("run, sweep", run_claims()), ("sweep", sweep_claims())):
        typer.echo(f"ident verify {command}")
        for claim in claims:
            typer.echo(f"  {claim.section:<7}{claim.id:<40}{claim.statement}")
    typer.echo("ident verify counts\n  a claim for each layer of its grid")


def _answer(
    outcomes: "Sequence[Outcome]", as_json: bool, report: Path | None, title: str, counted: "Sequence[Count]" = ()
) -> None:
    """Print the outcomes, write the report, and exit 1 when a claim fails."""
    from identcli.theory.report import markdown, row

    judged = [*outcomes, *(count.outcome for count in counted)]
    if report is not None:
        _write(report, markdown(judged, title))
    if as_json:
        typer.echo(json.dumps([row(outcome) for outcome in judged], indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _show(title, outcomes, counted)
    if any(outcome.holds is False for outcome in judged):
        raise typer.Exit(1)


def _write(path: Path, text: str) -> None:
    from identcli.architecture.errors import UserError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from None


_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("?", "yellow")}


def _show(title: str, outcomes: "Sequence[Outcome]", counted: "Sequence[Count]") -> None:
    """Tables for people: the claims, the counts, the errata, and one line that sums up."""
    from rich.console import Console

    from identcli.theory.report import summary

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(title, style="bold", markup=False)
    if outcomes:
        _show_claims(console, outcomes)
    if counted:
        _show_counts(console, counted)
    _show_errata(console, outcomes)
    judged = [*outcomes, *(count.outcome for count in counted)]
    failing = [outcome.claim.id for outcome in judged if outcome.holds is False]
    console.print()
    if failing:
        console.print(f"Fails: {', '.join(failing)}", style="bold red", markup=False)
    console.print(summary(judged), style="bold", markup=False)


def _show_claims(console: "Console", outcomes: "Sequence[Outcome]") -> None:
    from rich.table import Table
    from rich.text import Text

    from identcli.theory.report import number

    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("", width=1)
    table.add_column("", width=5)
    table.add_column("claim", ratio=1)
    for name in ("predicted", "measured", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    last, undecided = "", [outcome for outcome in outcomes if outcome.holds is None]
    for outcome in outcomes:
        if outcome.holds is None:
            continue
        claim = outcome.claim
        mark, style = _MARKS[outcome.holds]
        words = Text(claim.statement)
        if claim.erratum:
            words.append(" [erratum]", style="yellow")
        if outcome.note:
            words.append(f"\n{outcome.note}", style="red" if outcome.holds is False else "dim")
        table.add_row(
            Text(mark, style=style),
            Text(claim.section if claim.section != last else "", style="bold"),
            words,
            Text(number(outcome.predicted, claim.relation)),
            Text(number(outcome.measured)),
            Text(number(claim.tolerance) if claim.tolerance or claim.relation == "=" else ""),
        )
        last = claim.section
    console.print(table)
    if undecided:
        console.print("\nNot decided", style="bold")
    for outcome in undecided:
        claim = outcome.claim
        why = Text(f"?  {claim.section:<6}{claim.id}: ", style="yellow").append(outcome.note, style="default")
        console.print(why)


def _show_counts(console: "Console", counted: "Sequence[Count]") -> None:
    from rich.table import Table
    from rich.text import Text

    from identcli.theory.report import number

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", width=1)
    table.add_column("attention layer")
    for name in ("parameters", "predicted", "measured", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    for count in counted:
        outcome = count.outcome
        mark, style = _MARKS[outcome.holds]
        table.add_row(
            Text(mark, style=style),
            Text(outcome.claim.id.removeprefix("count-")),
            Text(f"{count.parameters}"),
            Text(number(outcome.predicted)),
            Text(number(outcome.measured)),
            Text(f"{count.gap:.0e}"),
        )
    console.print(table)
    console.print(f"Smallest gap between the singular values: {min(count.gap for count in counted):.0e}")


def _show_errata(console: "Console", outcomes: "Sequence[Outcome]") -> None:
    from rich.table import Table
    from rich.text import Text

    from identcli.theory.report import erratum

    corrected = [(outcome, found) for outcome in outcomes if (found := erratum(outcome))]
    if not corrected:
        return
    console.print("\nErrata: what the paper prints, why it can't be, what is right", style="bold")
    table = Table(box=None, pad_edge=False, show_header=False, expand=True)
    for size in (5, 7):
        table.add_column(width=size)
    table.add_column(ratio=1)
    for outcome, found in corrected:
        for index, part in enumerate(("printed", "why", "right")):
            section = "" if index else outcome.claim.section
            end = "\n" if part == "right" else ""
            table.add_row(Text(section, style="bold"), Text(part, style="dim"), Text(found[part] + end))
    console.print(table)
