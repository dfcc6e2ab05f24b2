"""A sweep of eight demo points, two at a time with a core each, against the same points one after the other with both.

    python -m benchmarks.sweep_speed [--points 8 --steps 500 --blocks 2]

Whole commands in turn: `hydra/launcher=basic threads=2` and `hydra/launcher=local hydra.launcher.n_jobs=2 threads=1`.
Beside each stands the sum of its runs' own time (elapsed_s of status.json); what a sweep takes beyond that sum, divided
by how many run at once, is start: Python, torch, composing, launching, and waiting for the last point alone.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.turns import Comparison, Goal, Record, ident, in_turn, options, process, table_of

LAUNCHERS = {
    "one after the other": ["hydra/launcher=basic", "threads=2"],
    "two at a time": ["hydra/launcher=local", "hydra.launcher.n_jobs=2", "threads=1"],
}
AT_ONCE = {"one after the other": 1, "two at a time": 2}
TINY = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=8", "batch_size=2", "eval.batches=1"]


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__, threads=False)
    for name, default in (("points", 8), ("steps", 500), ("blocks", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(words)
    if asked.quick:
        asked.points, asked.steps, asked.blocks = 2, 2, 1
    points, steps, blocks = asked.points, asked.steps, asked.blocks
    record = Record("sweep_speed", asked)
    own: dict[str, list[float]] = {side: [] for side in LAUNCHERS}

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        chosen = [f"seed=range(0,{points})", f"steps={steps}", "data=markov", *(TINY if asked.quick else [])]

        def sweep(side: str) -> float:
            seconds = process(ident("sweep", *chosen, *LAUNCHERS[side], "name=speed"), folder).seconds
            statuses = [json.loads(path.read_text()) for path in folder.glob("outputs/speed/*/status.json")]
            assert [status["state"] for status in statuses] == ["finished"] * points
            own[side].append(sum(status["elapsed_s"] for status in statuses))
            shutil.rmtree(folder / "outputs")
            return seconds

        took = in_turn({side: partial(sweep, side) for side in LAUNCHERS}, blocks, untimed=0)

    (one, both), comparisons = LAUNCHERS, []
    goal = Goal("ratio", "at least", 1.25)
    comparisons.append(Comparison(f"{points} points of {steps} steps", one, both, took[one], took[both], goal=goal))
    starts = {}
    for side in LAUNCHERS:
        starts[side] = [1 - runs / AT_ONCE[side] / wall for runs, wall in zip(own[side], took[side], strict=True)]
        notes = [f"{statistics.median(starts[side]):.0%} is start and waiting"]
        what = f"{side}: its runs, and all of it"
        comparisons.append(Comparison(what, "runs", "sweep", own[side], took[side], notes=notes))
    measured = [each.to_dict() for each in comparisons]
    return record.finish("A sweep", table_of(comparisons), measured, start_share=starts)


if __name__ == "__main__":
    main()
