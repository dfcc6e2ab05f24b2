"""Peak memory: of training beside nanoGPT's loop, and of a figure of 7.2 million rows, which is timed as well.

    python -m benchmarks.memory --nanogpt path/to/a/checkout [--scale demo cpu paper] [--steps 200000]

Each loop makes a few steps in a process of its own: the second step has all that the later ones have. The figure is
drawn by `ident plot` from 200,000 measured steps of 36 heads, and by a plain script from the same Parquet files, as
whole processes. The rows are invented, and deleted afterwards.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import invented
from benchmarks.loops import Apart, Here, nanogpt
from benchmarks.loops import ident as ident_loop
from benchmarks.turns import Comparison, Record, ident, options, process, table_of

STEPS = 2


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--scale", nargs="+", default=["demo", "cpu", "paper"])
    parser.add_argument("--steps", type=int, default=200_000, help="measured steps of the run that is drawn")
    asked = parser.parse_args(words)
    record = Record("memory", asked)
    comparisons = []
    loop = Here if asked.quick else Apart
    for scale in ["tiny"] if asked.quick else asked.scale:
        peaks = []
        with tempfile.TemporaryDirectory() as place:
            theirs = (nanogpt, asked.nanogpt.absolute(), scale, asked.threads, Path(place))
            ours = (ident_loop, scale, asked.threads, Path(place))
            for make in (ours, theirs):
                with loop(*make) as steps:
                    steps(STEPS)
                    peaks.append(steps.peak_mib())
        what = f"training at scale={scale}, collect=off"
        comparisons.append(Comparison(what, "ident", "nanoGPT", [peaks[0]], [peaks[1]], unit="MiB"))
    if not asked.quick:
        comparisons += figure(asked.steps)
    return record.finish("Peak memory", table_of(comparisons), [each.to_dict() for each in comparisons])


def figure(steps: int) -> list[Comparison]:
    """Memory and time of a figure of so many measured steps of 36 heads."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = folder / "run"
        process([sys.executable, "-m", "benchmarks.invented", str(run), str(steps)], folder, {"PYTHONPATH": ROOT})
        plain, ours = [], []
        for _ in range(2):
            plain.append(process([sys.executable, "-c", invented.PLAIN_PLOT, str(run)], folder))
            ours.append(process(ident("plot", str(run)), folder))
    what = f"ident plot, {36 * steps:,} rows"
    comparisons = []
    for unit, of in (("MiB", lambda ran: ran.peak_mib), ("s", lambda ran: ran.seconds)):
        took = [[of(ran) for ran in side] for side in (ours, plain)]
        comparisons.append(Comparison(what, "ident", "plain script", took[0], took[1], unit))
    return comparisons


ROOT = str(Path(__file__).parents[1])

if __name__ == "__main__":
    main()
