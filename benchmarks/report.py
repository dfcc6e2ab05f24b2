"""docs/BENCHMARKS.md, from the newest result of each benchmark.

python -m benchmarks.report
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.turns import RESULTS

DOCUMENT = Path(__file__).parents[1] / "docs/BENCHMARKS.md"
ORDER = ("training_speed", "collectors_cost", "whole_processes", "sweep_speed", "memory", "growth")

HEAD = """# Benchmarks

Written by `python -m benchmarks.report` from the newest results in `benchmarks/results/`, which hold every single time.
`make bench NANOGPT=path/to/a/checkout` runs all of them and writes this page anew.

The two sides of a row take turns, A B A B, since a shared machine's speed changes within seconds. Of each side stand
the least and the median; a ratio is first / second: of the medians, of the minima, and the median of the turns' own
ratios. A goal is judged by the medians; what measuring costs, where most of both sides are the same steps, in pairs.
"""


def main(words: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--to", type=Path, default=DOCUMENT)
    asked = parser.parse_args(words)
    asked.to.write_text(document(newest(asked.results)), encoding="utf-8")
    print(asked.to)
    return asked.to


def newest(folder: Path) -> list[dict[str, Any]]:
    """The newest result of each benchmark in that folder, in the order of the page."""
    of_name: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):  # names begin with the date
        result = json.loads(path.read_text(encoding="utf-8"))
        if "table" in result:
            of_name[result["name"]] = result
    known = [name for name in ORDER if name in of_name]
    return [of_name[name] for name in [*known, *sorted(of_name.keys() - set(known))]]


def document(results: Sequence[Mapping[str, Any]]) -> str:
    """The page: goals, then a table for each benchmark."""
    judged = [_judged(each) for result in results for each in result["measured"] if "judged" in each]
    goals = "## Goals\n\n" + markdown(["", "first / second", "goal", "measured", "reached"], judged)
    return "\n".join([HEAD, *([goals] if judged else []), *(_section(result) for result in results)])


def _judged(each: Mapping[str, Any]) -> list[str]:
    goal = each["judged"]
    sides = f"{each['first']} / {each['second']}"
    return [each["what"], sides, goal["goal"], goal["value"], "yes" if goal["reached"] else "**no**"]


def _section(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    commit = (result["git"] or {}).get("commit") or "unknown"
    load = [f"{result['load'][when][0]:.1f}" for when in ("before", "after")]
    threads = f"{result['threads']} threads; " if result["threads"] else ""
    where = (
        f"{result['date']}, {machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gib']} GiB; "
        f"{threads}load {load[0]} before, {load[1]} after; Python {versions['python']}, torch "
        f"{versions['torch']}, numpy {versions['numpy']}, ident {commit[:7]}."
    )
    table = markdown(result["table"]["columns"], result["table"]["rows"])
    return f"## {result['title']}\n\n`{result['command']}`\n\n{table}\n{where}\n"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column stands left, the others right."""
    lines = [columns, [":--", *["--:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
