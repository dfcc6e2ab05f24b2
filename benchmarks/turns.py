"""Taking turns A B A B, and what is made of the times: a table, ratios, goals, a file of results.

A shared machine's speed changes within seconds, so that only what runs in turn can be compared, as a ratio. Nothing
heavy is imported here: a benchmark of whole processes or of memory must be small itself.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

from identcli.store.environment import describe

RESULTS = Path(__file__).parent / "results"


def in_turn(sides: Mapping[str, Callable[[], object]], blocks: int, untimed: int = 1) -> dict[str, list[float]]:
    """Seconds of each side, block by block, in turn; `untimed` blocks of each go before.

    A side that returns a number is taken at its word: it has measured its seconds, or something else, itself.
    """
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for block in range(-untimed, blocks):
        for side, run in sides.items():
            begin = time.perf_counter()
            measured = run()
            seconds = time.perf_counter() - begin
            if block >= 0:
                taken[side].append(float(measured) if isinstance(measured, float) else seconds)
    return taken


def compare(first: Callable[[int], None], second: Callable[[int], None], steps: int, blocks: int) -> tuple[list, list]:
    """Seconds a step of two functions that make n steps, block by block, in turn; one block of each goes before."""
    taken = in_turn({"first": lambda: first(steps), "second": lambda: second(steps)}, blocks)
    seconds = [[block / steps for block in taken[side]] for side in ("first", "second")]
    return seconds[0], seconds[1]


@dataclass(frozen=True)
class Goal:
    """`of`: the ratio of the medians, the median of the turns' own ratios, the first side's median, or by how much it
    lies above the second's."""

    of: Literal["ratio", "pairs", "first", "difference"]
    sense: Literal["at least", "at most"]
    bound: float

    def text(self, unit: str) -> str:
        sign = "≥" if self.sense == "at least" else "≤"
        if self.of in ("ratio", "pairs"):
            return f"{sign} {self.bound:g}"
        return f"{sign} {self.bound:g} {unit}{' more' if self.of == 'difference' else ''}"


@dataclass(frozen=True)
class Comparison:
    """What two sides took, block by block. Its ratio is first / second, whichever of them is ident."""

    what: str
    first: str
    second: str
    first_took: Sequence[float]
    second_took: Sequence[float]
    unit: str = "s"
    goal: Goal | None = None
    notes: Sequence[str] = ()

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.first_took) / statistics.median(self.second_took)

    @property
    def ratio_of_minima(self) -> float:
        return min(self.first_took) / min(self.second_took)

    @property
    def ratio_in_pairs(self) -> float:
        """The median of the ratios of the two blocks of a turn: a slow change of the machine's speed cancels."""
        return statistics.median(a / b for a, b in zip(self.first_took, self.second_took, strict=True))

    @property
    def judged(self) -> float | None:
        """The value that the goal speaks of; None without a goal."""
        if self.goal is None:
            return None
        first = statistics.median(self.first_took)
        above = first - statistics.median(self.second_took)
        values = {"ratio": self.ratio, "pairs": self.ratio_in_pairs, "first": first, "difference": above}
        return values[self.goal.of]

    @property
    def reached(self) -> bool | None:
        """Whether the goal is met; None without one."""
        value = self.judged
        if self.goal is None or value is None:
            return None
        return value >= self.goal.bound if self.goal.sense == "at least" else value <= self.goal.bound

    def to_dict(self) -> dict[str, Any]:
        ratios = {"medians": self.ratio, "minima": self.ratio_of_minima, "pairs": self.ratio_in_pairs}
        return asdict(self) | {"ratio": ratios} | self._in_words()

    def _in_words(self) -> dict[str, Any]:
        if self.goal is None or self.judged is None:
            return {}
        value = f"{self.judged:.3f}" if self.goal.of in ("ratio", "pairs") else amount(self.judged, self.unit)
        return {"judged": {"goal": self.goal.text(self.unit), "value": value, "reached": self.reached}}


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self, title: str) -> None:
        """Print it on standard output."""
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(title=title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 190).print(table)


def table_of(comparisons: Sequence[Comparison]) -> Table:
    """Least and median of either side, the ratios first / second, the goal."""
    columns = ["", "first", "second", "ratio of medians", "of minima", "in pairs", "goal", "reached"]
    rows = []
    for each in comparisons:
        sides = [(each.first, each.first_took), (each.second, each.second_took)]
        cells = [f"{name} {amount(min(t), each.unit)}, {amount(statistics.median(t), each.unit)}" for name, t in sides]
        ratios = [f"{value:.2f}" for value in (each.ratio, each.ratio_of_minima, each.ratio_in_pairs)]
        goal = each.goal.text(each.unit) if each.goal else ""
        reached = {None: "", True: "yes", False: "no"}[each.reached]
        rows.append(["; ".join([each.what, *each.notes]), *cells, *ratios, goal, reached])
    return Table(columns, rows)


def amount(value: float, unit: str) -> str:
    """`48.3 ms`, `2.31 s`, `412 MiB`."""
    if unit == "s" and abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


class Ran(NamedTuple):
    """How a process went."""

    seconds: float
    peak_mib: float


def process(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> Ran:
    """Run a command in `folder` as a process and wait for it. SystemExit with the end of what it said if it fails.

    Linux counts the memory of the process that starts another as that one's too, so this process must be the smaller.
    Compiled Python files may be written, as on any machine that has run a command once.
    """
    environment = {**os.environ, **(variables or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    said = folder / "said.txt"
    with said.open("wb") as file:
        begin = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"error: {shlex.join(command)}: exit status {child.returncode}\n{said.read_text()[-2000:]}")
    return Ran(seconds, used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))


def ident(*words: str) -> list[str]:
    """The command `ident` of this environment."""
    return [str(Path(sys.executable).with_name("ident")), *words]


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def options(description: str | None, threads: bool = True) -> argparse.ArgumentParser:
    """What every benchmark takes: --quick, --out, and --threads unless its commands choose themselves."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run? Its figures mean nothing")
    if threads:
        parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, help="folder for the result; else benchmarks/results, for --quick nowhere")
    return parser


@dataclass
class Record:
    """One run of a benchmark, from its start on; `finish` prints the table and writes the JSON."""

    name: str
    asked: argparse.Namespace
    load_before: Sequence[float] = field(default_factory=os.getloadavg)

    def finish(self, title: str, table: Table, measured: Sequence[Mapping[str, Any]], **more: Any) -> Path | None:
        """Where the result was written: <out>/<date>-<name>.json; a second one of a day replaces the first."""
        table.show(title)
        out = self.asked.out or (None if self.asked.quick else RESULTS)
        if out is None:
            return None
        facts = describe()
        content = {
            "name": self.name,
            "title": title,
            "command": self._command(),
            "date": str(date.today()),
            "quick": self.asked.quick,
            "threads": getattr(self.asked, "threads", None),
            "machine": facts["machine"] | {"memory_gib": _memory_gib(), "platform": facts["platform"]},
            "versions": {"python": facts["python"]} | facts["packages"],
            "variables": facts["variables"],
            "git": facts["git"],
            "load": {"before": list(self.load_before), "after": list(os.getloadavg())},
            "table": {"columns": list(table.columns), "rows": [list(row) for row in table.rows]},
            "measured": list(measured),
        }
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{content['date']}-{self.name}.json"
        path.write_text(json.dumps(content | more, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def _command(self) -> str:
        """With every setting, but for where things lie on this machine."""
        words = ["python", "-m", f"benchmarks.{self.name}"]
        for name, value in vars(self.asked).items():
            if name == "nanogpt":
                words += ["--nanogpt", "path/to/a/checkout"]
            elif isinstance(value, bool):
                words += [f"--{name}"] if value else []
            elif name != "out":
                words += [f"--{name}", *(str(each) for each in (value if isinstance(value, list) else [value]))]
        return shlex.join(words)


def _memory_gib() -> float | None:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if any(name not in os.sysconf_names for name in names):
        return None
    return round(os.sysconf(names[0]) * os.sysconf(names[1]) / 2**30, 1)
