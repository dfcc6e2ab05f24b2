"""Whether a GPU trains and measures as a CPU does: the same weights, the same batches, no dropout.

    python -m benchmarks.gpu_agreement --device cuda [--scale cpu] [--steps 20] [--out FILE.json]

How far may they be apart? Both round, in another order, and training enlarges the difference; so the yardstick is
measured: the same steps in float64 on the CPU. The GPU's distance from those may be at most ALLOWED times the CPU's own
plus LEAST. TF32 and bfloat16 round more on purpose: their distance is told, and not judged.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loops import corpus_for, sizes_of
from identcli.collectors import attach, every
from identcli.data.batches import Batches
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.loop import Plan, train
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision
from identcli.training.schedule import WarmupCosine

# The largest of a few hundred differences, each of a few roundings: ten times another such is still the same rounding.
ALLOWED = 10.0
# A distance in the loss of an ulp or two can't be told from none; likewise for the metrics.
LEAST = 1e-6

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.25, "weight_decay": 0.0, "momentum": 0.0},
    "adamw": {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8},
}
# What each distance is relative to. ρ is a share of 1; τ may be zero and SGD's drift nearly is: both are parts of β.
QUANTITIES = {"loss": "loss", "rho": None, "beta": "beta", "tau": "beta", "mu": "mu", "drift": "beta"}

PRECISIONS = {
    "float32": Precision(torch.device("cuda")),
    "tf32": Precision(torch.device("cuda"), tf32=True),
    "bfloat16": Precision(torch.device("cuda"), torch.bfloat16),
}


class Losses(list[float]):
    """Keeps the losses of the updates, and nothing else of what a loop reports."""

    def updated(self, step: int, loss: float, lr: float, grad_norm: float) -> None:
        self.append(loss)

    def rebalance(self, state: int) -> None: ...
    def evaluated(self, state: int, losses: dict[str, float]) -> None: ...
    def checkpoint(self, state: int) -> None: ...


def trajectory(
    optimizer: str, scale: str, steps: int, precision: Precision, dtype: torch.dtype = torch.float32
) -> dict[str, np.ndarray]:
    """Losses and the columns of the heads at every step; `dtype`: in which the weights are kept."""
    sizes, batch_size = sizes_of(scale)
    corpus = corpus_for(scale)
    torch.manual_seed(0)
    model = GPT(GPTConfig(len(corpus.vocabulary), **{**sizes, "dropout": 0.0})).to(precision.device, dtype)
    settings = dict(SETTINGS[optimizer])
    rate = WarmupCosine(settings["lr"], 5000, warmup=steps // 2)
    stepper = build_optimizer(optimizer, model.parameters(), **settings)
    batches = Batches(corpus.tokens, sizes["block_size"], batch_size, 1337, precision.device)
    precision.apply()
    heard, first = Losses(), {"first": [batches.batch(0)]}
    with attach(stepper, model.named_parameters(), nanogpt(model.config.attention), when=every(1)) as collector:
        train(model, stepper, batches.batch, rate, Plan(steps), precision, first, heard)
        return {"loss": np.array(heard)} | collector.table("heads")


def distance(one: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest distance from the exact values over all steps (and heads), for each quantity."""
    return {
        name: float(np.max(np.abs(one[name] - exact[name]) / (np.abs(exact[scale]) if scale else 1.0)))
        for name, scale in QUANTITIES.items()
    }


def compare(device: str, scale: str, steps: int) -> dict[str, Any]:
    """optimizer → precision → quantity → distance, with `cpu` for the CPU's float32 and `agrees` for the verdict."""
    cpu = Precision(torch.device("cpu"))
    found: dict[str, Any] = {}
    for optimizer in SETTINGS:
        exact = trajectory(optimizer, scale, steps, cpu, torch.float64)
        of: dict[str, Any] = {"cpu": distance(trajectory(optimizer, scale, steps, cpu), exact)}
        if device == "cpu":  # a trial of this script: the same once more
            of["float32"] = distance(trajectory(optimizer, scale, steps, cpu), exact)
        else:
            for name, precision in PRECISIONS.items():
                of[name] = distance(trajectory(optimizer, scale, steps, precision), exact)
        of["agrees"] = {name: of["float32"][name] <= ALLOWED * of["cpu"][name] + LEAST for name in QUANTITIES}
        found[optimizer] = of
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = compare(arguments.device, arguments.scale, arguments.steps)
    text = json.dumps({"scale": arguments.scale, "steps": arguments.steps, "optimizers": found}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0 if all(all(of["agrees"].values()) for of in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
