"""Tokens a second on a GPU: `ident train` as it is, compiled, as a CUDA graph, and both; and nanoGPT's loop, compiled.

    python -m benchmarks.gpu_speed --device cuda --precision bfloat16 [--nanogpt path/to/a/checkout] [--out FILE.json]

Blocks of steps are taken in turn A B C … A B C …, each up to the moment when the device has done them. A way that fails
is left out and its reason kept. The first block of each, which compiles or records, is told apart.
`--precision`: float32, tf32 or bfloat16, for all of them. Also what one measurement of all heads takes on the host,
beside training, and on the device.
"""

import argparse
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.loops import Block, corpus_for, ident_block, nanogpt_block, nanogpt_module, sizes_of
from benchmarks.precision_effect import PRECISIONS
from identcli.collectors import attach, every
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision

SECONDS_A_BLOCK = 1.0

WAYS = {
    "ident": [],
    "ident graph": ["cuda_graph=true"],
    "ident compiled": ["compile=true"],
    "ident compiled graph": ["compile=true", "cuda_graph=true"],
}
MEASURING = {"ident graph, measuring every 10": ["cuda_graph=true", "collect=paper", "collect.every=10"]}


class Placed:
    """nanoGPT's model as its train.py has it on a device: batches pinned and sent without waiting, autocast, compiled.

    It stands where `nanogpt_block` expects the model itself.
    """

    def __init__(self, module: ModuleType, precision: Precision, compiled: bool, config: Any) -> None:
        self._model, self._precision = module.GPT(config).to(precision.device), precision
        self._forward = torch.compile(self._model) if compiled else self._model
        self.parameters = self._model.parameters

    def configure_optimizers(self, decay: float, lr: float, betas: tuple[float, float], _: str) -> Any:
        return self._model.configure_optimizers(decay, lr, betas, self._precision.device.type)

    def __call__(self, *batch: Tensor) -> Any:
        with self._precision.autocast():
            return self._forward(*(self._sent(rows) for rows in batch))

    def _sent(self, rows: Tensor) -> Tensor:
        if self._precision.device.type == "cuda":
            return rows.pin_memory().to(self._precision.device, non_blocking=True)
        return rows


def ways(device: str, scale: str, name: str, checkout: Path | None, folder: Path) -> dict[str, Callable[[], Block]]:
    """What is compared: how each comes to a function that makes n steps. A CPU records no graph, and compiles long."""
    sizes, batch_size = sizes_of(scale)
    corpus, on_gpu = corpus_for(scale), device == "cuda"
    precision = Precision(torch.device(device), *_settings(name))
    precision.apply()
    made: dict[str, Callable[[], Block]] = {}
    if checkout:
        module = nanogpt_module(checkout)
        there = SimpleNamespace(GPTConfig=module.GPTConfig, GPT=partial(Placed, module, precision, on_gpu))
        made["nanoGPT compiled" if on_gpu else "nanoGPT"] = partial(
            nanogpt_block,
            there,  # type: ignore[arg-type]
            corpus,
            sizes,
            batch_size,
            folder,
        )
    chosen = WAYS | (MEASURING if name == "bfloat16" else {}) if on_gpu else {"ident": []}
    for way, words in chosen.items():
        place = folder / way.replace(" ", "-")
        place.mkdir()
        given = ["collect=off", f"device={device}", *PRECISIONS[name], *words]
        made[way] = partial(ident_block, corpus, sizes, batch_size, given, place)
    return made


def _settings(name: str) -> tuple[torch.dtype, bool]:
    return (torch.bfloat16 if name == "bfloat16" else torch.float32), name == "tf32"


def in_turn(made: dict[str, Callable[[], Block]], device: str, seconds: float, blocks: int) -> dict[str, Any]:
    """way → seconds a step of each block, the first block's seconds and its steps; or the reason why it failed.

    `seconds`: no further turn begins after so many.
    """

    def timed(steps: int, run: Block) -> float:
        begin = time.perf_counter()
        run(steps)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    began, running, found = time.perf_counter(), {}, {}
    for way, make in made.items():
        try:
            run = make()
            first = timed(3, run)
            steps = max(1, round(SECONDS_A_BLOCK * 3 / timed(3, run)))
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt):
                raise
            traceback.print_exc()
            found[way] = {"failed": f"{type(failure).__name__}: {failure}".splitlines()[0]}
            continue
        running[way] = (run, steps)
        found[way] = {"first_block_s": first, "steps": steps, "seconds": []}
    for _ in range(blocks):
        if time.perf_counter() - began > seconds:
            break
        for way, (run, steps) in running.items():
            found[way]["seconds"].append(timed(steps, run) / steps)
    return found


def measurement(device: str, scale: str) -> dict[str, float]:
    """Seconds of one measurement of all query-key heads: on the device, in the way of training, and on the host."""
    sizes, _ = sizes_of(scale)
    model = GPT(GPTConfig(65, **sizes)).to(device)
    optimizer = build_optimizer("sgd", model.parameters(), 0.0, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    taken = {}
    for where, beside in (("on the device", False), ("on the host", True)):
        with attach(
            optimizer, model.named_parameters(), nanogpt(model.config.attention), when=every(1), beside=beside
        ) as c:
            each = []
            for _ in range(4):
                begin = time.perf_counter()
                optimizer.step()
                c.flush()
                each.append(time.perf_counter() - begin)
        taken[where] = statistics.median(each[1:])
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--precision", default="bfloat16", choices=PRECISIONS)
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT; without one ident is measured alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="no further turn begins after so many")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sizes, batch_size = sizes_of(arguments.scale)
    if arguments.nanogpt is None:
        print("no checkout of nanoGPT was named (NANOGPT=path): ident is measured alone")
    found: dict[str, Any] = {"scale": arguments.scale, "tokens_a_step": batch_size * sizes["block_size"]}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = ways(arguments.device, arguments.scale, arguments.precision, arguments.nanogpt, Path(folder))
        found["ways"] = in_turn(made, arguments.device, arguments.seconds, arguments.blocks)
        if arguments.precision == "bfloat16":
            found["measurement_s"] = measurement(arguments.device, arguments.scale)
        text = json.dumps(found, indent=1)
        print(text)
        if arguments.out:
            arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
