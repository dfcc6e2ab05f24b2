"""Tokens a second of ident's training loop against nanoGPT's, at the same sizes, in turn.

    python -m benchmarks.training_speed --nanogpt path/to/a/checkout [--scale demo cpu paper] [--threads N]

nanoGPT's `model.py` is loaded from the checkout; its loop is what its train.py does in a step on a CPU: batch from a
memory-mapped file, forward, backward, clip, AdamW, gradients dropped, learning rate set. Both get the same sizes,
data, dropout and threads. Blocks of steps are taken in turn A B A B, since a shared machine's speed changes within
seconds; the ratio of the fastest blocks and of the medians is printed, with nothing collected on ident's side.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from identcli.data.batches import Batches
from identcli.data.corpora import load
from identcli.data.corpus import Corpus
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.loop import Plan, train
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision
from identcli.training.schedule import WarmupCosine

# sizes, batch size, steps a block, blocks
SCALES: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "demo": ({"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "dropout": 0.0}, 12, 20, 15),
    "cpu": ({"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 64, "dropout": 0.0}, 12, 4, 10),
    "paper": ({"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "dropout": 0.2}, 64, 1, 3),
}


def nanogpt_block(
    module: ModuleType, corpus: Corpus, sizes: dict[str, Any], batch_size: int, folder: Path
) -> Callable[[int], None]:
    """A function that makes n steps of nanoGPT's loop."""
    path = folder / "train.bin"
    corpus.tokens["train"].numpy().astype(np.uint16).tofile(path)
    model = module.GPT(module.GPTConfig(vocab_size=len(corpus.vocabulary), bias=True, **sizes))
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    learning_rate = WarmupCosine(1e-3, 5000)
    length = sizes["block_size"]
    done = 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - length, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
        return x, y

    def steps(count: int) -> None:
        nonlocal done
        x, y = batch()
        for _ in range(count):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(done)
            _, loss = model(x, y)
            x, y = batch()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1

    return steps


class Silent:
    """Events that nobody hears."""

    def updated(self, *_: Any) -> None: ...
    def rebalance(self, *_: Any) -> None: ...
    def evaluated(self, *_: Any) -> None: ...
    def checkpoint(self, *_: Any) -> None: ...


def ident_block(corpus: Corpus, sizes: dict[str, Any], batch_size: int) -> Callable[[int], None]:
    """A function that makes n steps of ident's loop."""
    model = GPT(GPTConfig(vocab_size=len(corpus.vocabulary), bias=True, **sizes))
    optimizer = build_optimizer("adamw", model.parameters(), 1e-3, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8)
    batches = Batches(corpus.tokens, sizes["block_size"], batch_size, seed=0)
    precision, learning_rate = Precision(torch.device("cpu")), WarmupCosine(1e-3, 5000)
    done = 0

    def steps(count: int) -> None:
        nonlocal done
        start, done = done, done + count
        plan = Plan(steps=done, clip=1.0)
        # Events at start 0 would evaluate; there is nothing to evaluate on.
        train(model, optimizer, batches.batch, learning_rate, plan, precision, {}, Silent(), start)

    return steps


def compare(first: Callable[[int], None], second: Callable[[int], None], steps: int, blocks: int) -> tuple[list, list]:
    """Seconds a step of each, block by block, in turn; one block of each goes before, untimed."""
    times: tuple[list[float], list[float]] = ([], [])
    for block in range(blocks + 1):
        for which, run in enumerate((first, second)):
            begin = time.perf_counter()
            run(steps)
            if block:
                times[which].append((time.perf_counter() - begin) / steps)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--scale", nargs="+", default=["demo", "cpu"], choices=SCALES)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="write the figures as JSON too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    source = arguments.nanogpt / "model.py"
    if not source.is_file():
        sys.exit(f"error: {source}: no such file; --nanogpt names a checkout of nanoGPT")
    spec = importlib.util.spec_from_file_location("nanogpt_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    corpus = load({"name": "tiny_shakespeare"})
    table = Table(title=f"training, {arguments.threads} threads, torch {torch.__version__}")
    for column in ("scale", "nanoGPT tokens/s", "ident tokens/s", "ratio of medians", "ratio of fastest"):
        table.add_column(column, justify="right")
    results = {}
    for scale in arguments.scale:
        sizes, batch_size, steps, blocks = SCALES[scale]
        with tempfile.TemporaryDirectory() as folder:
            nano = nanogpt_block(module, corpus, sizes, batch_size, Path(folder))
            ours = ident_block(corpus, sizes, batch_size)
            theirs_s, ours_s = compare(nano, ours, steps, blocks)
        tokens = batch_size * sizes["block_size"]
        median = [statistics.median(times) for times in (theirs_s, ours_s)]
        fastest = [min(times) for times in (theirs_s, ours_s)]
        speeds = [f"{tokens / m:,.0f} (best {tokens / f:,.0f})" for m, f in zip(median, fastest, strict=True)]
        table.add_row(scale, *speeds, f"{median[0] / median[1]:.2f}", f"{fastest[0] / fastest[1]:.2f}")
        results[scale] = {"nanogpt_s": theirs_s, "ident_s": ours_s, "tokens_a_step": tokens}
    Console().print(table)
    if arguments.out:
        facts = {"date": str(date.today()), "machine": platform.platform(), "torch": torch.__version__}
        arguments.out.write_text(json.dumps(facts | {"threads": arguments.threads, "scales": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
