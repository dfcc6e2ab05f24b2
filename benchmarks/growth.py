"""How each cost grows with layers, heads and width, one of them varied at a time.

    python -m benchmarks.growth [--blocks 5]

A training step, one measurement of all heads, a rebalancing of all heads, writing 100 measured steps, and drawing a run
of 200 of them. All sizes of a cost take turns. The exponent is the slope of log time against log size, of the medians:
1 is proportional, 0 doesn't depend on it. Heads at a fixed width get smaller: D = E / H.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.collectors_cost import measured_step
from benchmarks.invented import write_run
from benchmarks.loops import STEPS, TINY, corpus_for
from benchmarks.turns import Record, Table, amount, in_turn, options
from identcli.data.batches import Batches
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.store.metrics import SCHEMAS, MetricWriter
from identcli.training.loop import Plan, train
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision
from identcli.training.rebalancing import rebalance
from identcli.training.schedule import WarmupCosine

Sizes = Mapping[str, Any]
Cost = Callable[[Sizes, Path], Callable[[], object]]

DEMO = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "dropout": 0.0, "bias": True}
VARIED = {"n_layer": (2, 4, 8), "n_head": (2, 4, 8), "n_embd": (64, 128, 256, 512)}
NAMES = {"n_layer": "layers", "n_head": "heads", "n_embd": "width"}


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__)
    parser.add_argument("--blocks", type=int, default=5)
    asked = parser.parse_args(words)
    torch.set_num_threads(asked.threads)
    record = Record("growth", asked)
    base = TINY if asked.quick else DEMO
    varied = {"n_layer": (1, 2)} if asked.quick else VARIED
    rows, measured = [], []
    for what, (cost, grows_with) in COSTS.items():
        for name in (name for name in varied if name in grows_with):
            took = sizes_in_turn(cost, base, name, varied[name], *((1, 0) if asked.quick else (asked.blocks, 1)))
            medians = {size: statistics.median(seconds) for size, seconds in took.items()}
            exponent = slope(medians)
            cells = ", ".join(f"{size}: {amount(median, 's')}" for size, median in medians.items())
            least = ", ".join(f"{size}: {amount(min(seconds), 's')}" for size, seconds in took.items())
            rows.append([what, NAMES[name], cells, least, f"{exponent:.2f}"])
            seconds_of = {str(size): seconds for size, seconds in took.items()}
            measured.append({"what": what, "grows_with": NAMES[name], "took_s": seconds_of, "exponent": exponent})
    table = Table(["", "with", "medians", "minima", "exponent"], rows)
    return record.finish("Growth, from 4 layers, 4 heads, width 128", table, measured)


def sizes_in_turn(
    cost: Cost, base: Sizes, name: str, values: Sequence[int], blocks: int, untimed: int
) -> dict[int, list[float]]:
    """Seconds of a cost at each value of one size, the others as in `base`."""
    with tempfile.TemporaryDirectory() as place:
        works = {}
        for value in values:
            folder = Path(place) / str(value)
            folder.mkdir()
            works[str(value)] = partial(_no_result, cost({**base, name: value}, folder))
        took = in_turn(works, blocks, untimed)
    return {value: took[str(value)] for value in values}


def _no_result(work: Callable[[], object]) -> None:
    work()


def slope(medians: Mapping[int, float]) -> float:
    """Of log time against log size, by least squares."""
    x, y = np.log(list(medians)), np.log(list(medians.values()))
    return float(np.polyfit(x, y, 1)[0])


class Silent:
    """Events of a loop that nobody hears."""

    def updated(self, *_: Any) -> None: ...
    def rebalance(self, *_: Any) -> None: ...
    def evaluated(self, *_: Any) -> None: ...
    def checkpoint(self, *_: Any) -> None: ...


def training_step(sizes: Sizes, folder: Path) -> Callable[[], object]:
    """Five updates of the loop alone, nothing measured or written. The text is generated: it costs what any does."""
    corpus = corpus_for("tiny")
    model = GPT(GPTConfig(len(corpus.vocabulary), **sizes))
    optimizer = _adamw(model)
    batches = Batches(corpus.tokens, sizes["block_size"], 12, seed=0)
    plan, rate, precision = Plan(STEPS), WarmupCosine(1e-3, STEPS), Precision(torch.device("cpu"))
    starts = count(1, 5)

    def steps() -> None:
        start = next(starts)
        stop = lambda state: state == start + 5  # noqa: E731
        train(model, optimizer, batches.batch, rate, plan, precision, {}, Silent(), start, stop)

    return steps


def measurement(sizes: Sizes, folder: Path) -> Callable[[], object]:
    """One measurement of all heads."""
    return measured_step(sizes)[0]


def rebalancing(sizes: Sizes, folder: Path) -> Callable[[], object]:
    """Moving all pairs of queries and keys to balance, the optimizer's state with them. They stand there already from
    the second time on, which costs the same."""
    model = GPT(GPTConfig(65, **sizes))
    optimizer = _adamw(model)
    model(*torch.randint(65, (2, 1, 8)))[1].backward()
    optimizer.step()
    named, layout = dict(model.named_parameters()), nanogpt(model.config.attention)
    return partial(rebalance, named, optimizer, layout, state="transport")


def writing(sizes: Sizes, folder: Path) -> Callable[[], object]:
    """Adding 100 measured steps of all heads, and flushing them."""
    heads = sizes["n_layer"] * sizes["n_head"]
    layer, head = np.divmod(np.arange(heads), sizes["n_head"])
    values = np.random.default_rng(0).random(heads)
    columns = {name: values for name, column in SCHEMAS["heads"].items() if column.kind == "float32"}
    writer, steps = MetricWriter(folder), count()

    def flush() -> None:
        for _ in range(100):
            writer.add("heads", next(steps), layer=layer, head=head, circuit="qk", **columns)
        writer.flush()

    return flush


def drawing(sizes: Sizes, folder: Path) -> Callable[[], object]:
    """Fig. 2 of a run of 200 measured steps."""
    from identcli.figures import draw

    words = [f"model.{name}={value}" for name, value in sizes.items()]
    write_run(folder / "run", 200, words)
    return lambda: draw([folder / "run"], folder / "figures", ["2"])


def _adamw(model: GPT) -> torch.optim.Optimizer:
    return build_optimizer("adamw", model.parameters(), 1e-3, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8)


# Each cost, and what it can grow with: figures and files know no width.
COSTS: dict[str, tuple[Cost, Sequence[str]]] = {
    "five training steps": (training_step, list(VARIED)),
    "one measurement": (measurement, list(VARIED)),
    "one rebalancing": (rebalancing, list(VARIED)),
    "writing 100 measured steps": (writing, ["n_layer", "n_head"]),
    "drawing 200 measured steps, Fig. 2": (drawing, ["n_layer", "n_head"]),
}


if __name__ == "__main__":
    main()
