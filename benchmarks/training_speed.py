"""Tokens a second of ident's training loop against nanoGPT's, at the same sizes, in turn.

    python -m benchmarks.training_speed --nanogpt path/to/a/checkout [--scale demo cpu paper] [--threads N]

nanoGPT's `model.py` is loaded from the checkout; its loop is what its train.py does in a step on a CPU. ident's is the
run of `ident train collect=off` itself, with its writer, its status and its log, made to wait while nanoGPT has its
turn. Both get the same sizes, corpus, dropout and threads, and a process each; new ones in every round, since of two
processes that do the very same one is some percent slower for as long as it lives, by where its memory lies.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.loops import Apart, Here, ident, nanogpt, sizes_of
from benchmarks.turns import Comparison, Goal, Record, compare, options, table_of


class Turn(NamedTuple):
    """How often, and how much faster than nanoGPT ident should be."""

    steps: int
    blocks: int
    rounds: int
    goal: float | None


TURNS = {
    "demo": Turn(steps=20, blocks=4, rounds=8, goal=1.1),
    "cpu": Turn(steps=4, blocks=4, rounds=5, goal=1.0),
    "paper": Turn(steps=1, blocks=2, rounds=2, goal=1.7),
    "tiny": Turn(steps=2, blocks=2, rounds=1, goal=None),
}


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--scale", nargs="+", default=["demo", "cpu", "paper"], choices=list(TURNS))
    asked = parser.parse_args(words)
    record = Record("training_speed", asked)
    comparisons: list[Comparison] = []
    measured: list[dict[str, Any]] = []
    for scale in ["tiny"] if asked.quick else asked.scale:
        turn, loop = TURNS[scale], Here if asked.quick else Apart
        theirs_s, ours_s = [], []
        for _ in range(turn.rounds):
            with (
                tempfile.TemporaryDirectory() as folder,
                loop(nanogpt, asked.nanogpt.absolute(), scale, asked.threads, Path(folder)) as theirs,
                loop(ident, scale, asked.threads, Path(folder)) as ours,
            ):
                took = compare(theirs, ours, turn.steps, turn.blocks)
            theirs_s += took[0]
            ours_s += took[1]
        sizes, batch_size = sizes_of(scale)
        tokens = batch_size * sizes["block_size"]
        speeds = [tokens / statistics.median(seconds) for seconds in (theirs_s, ours_s)]
        each = Comparison(
            f"a step at scale={scale}",
            "nanoGPT",
            "ident",
            theirs_s,
            ours_s,
            goal=Goal("ratio", "at least", turn.goal) if turn.goal else None,
            notes=[f"{speeds[0]:,.0f} and {speeds[1]:,.0f} tokens/s"],
        )
        comparisons.append(each)
        measured.append(each.to_dict() | {"scale": scale, "tokens_a_step": tokens, **turn._asdict()})
    return record.finish("Training, collect=off, against nanoGPT's loop", table_of(comparisons), measured)


if __name__ == "__main__":
    main()
