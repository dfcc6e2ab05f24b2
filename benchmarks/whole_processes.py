"""How long whole commands take, each in turn with what could not be done without.

    python -m benchmarks.whole_processes

`ident --help` against an interpreter that does nothing; `ident train steps=1`, as it stands and without measuring,
evaluating and keeping, against a script that imports torch and makes one AdamW step; `ident verify lemmas` against
importing torch; `ident plot` of a run of 36 heads × 5,000 measured steps against a plain script that reads the same
Parquet files and draws the same lines.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.invented import PLAIN_PLOT, write_run
from benchmarks.turns import Comparison, Goal, Record, ident, in_turn, options, process, table_of

PYTHON = sys.executable
ONE_STEP = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(1, 64)).sum().backward()
optimizer.step()
"""
BARE = ["collect=off", "eval.batches=1", "checkpoint.every=0"]


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__, threads=False)
    parser.add_argument("--blocks", type=int, default=5)
    asked = parser.parse_args(words)
    record = Record("whole_processes", asked)
    data = "data=tiny_shakespeare" if _has_corpus() else "data=markov"

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = folder / "run"
        write_run(run, steps=2 if asked.quick else 5000)
        interpreter, torch = [PYTHON, "-c", "pass"], [PYTHON, "-c", "import torch"]
        train, script = ident("train", "steps=1", data), [PYTHON, "-c", ONE_STEP]
        plot, plain = ident("plot", str(run)), [PYTHON, "-c", PLAIN_PLOT, str(run)]
        all_of_them: list[tuple[str, list[str], str, list[str], Goal | None]] = [
            ("ident --help", ident("--help"), "python -c pass", interpreter, Goal("first", "at most", 0.15)),
            ("ident train steps=1", train, "one AdamW step", script, Goal("difference", "at most", 1)),
            (f"ident train steps=1 {' '.join(BARE)}", [*train, *BARE], "one AdamW step", script, None),
            ("ident verify lemmas", ident("verify", "lemmas"), "import torch", torch, None),
            ("ident plot, 36 heads × 5,000 rows", plot, "plain script", plain, None),
        ]
        if asked.quick:  # the others take seconds to start
            all_of_them = all_of_them[:1]
        comparisons = []
        for what, first, peer, second, goal in all_of_them:
            turns = {"ident": partial(_seconds, first, folder), peer: partial(_seconds, second, folder)}
            took = in_turn(turns, 2 if asked.quick else asked.blocks)
            comparisons.append(Comparison(what, "ident", peer, took["ident"], took[peer], goal=goal))
    return record.finish("Whole processes", table_of(comparisons), [each.to_dict() for each in comparisons], data=data)


def _seconds(command: Sequence[str], folder: Path) -> float:
    return process(command, folder).seconds


def _has_corpus() -> bool:
    from identcli.data import tiny_shakespeare

    return bool(tiny_shakespeare.status()["ok"])


if __name__ == "__main__":
    main()
