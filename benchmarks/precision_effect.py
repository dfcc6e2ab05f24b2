"""What TF32 and bfloat16 do to ρ, β and the drift, against float32, at demo size.

    python -m benchmarks.precision_effect [--device cpu|cuda] [--steps 300] [KEY=VALUE]… [--out FILE.json]

Trains SGD (lr 0.25) and AdamW in each precision from the same weights on the same batches. On a CPU bfloat16 is torch's
own autocast; TF32, which only NVIDIA's tensor cores have, is emulated by rounding the factors of every float32 product
to 10 bits, forward and backward. On CUDA both are the real thing. Weights, gradients and optimizer state are float32
and measurements float64 throughout: what differs is how exact the gradient is.
"""

import argparse
import json
import platform
import tempfile
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from identcli.config.preflight import single
from identcli.runs.train import run
from identcli.store import metrics

PRECISIONS = {
    "float32": ["dtype=float32"],
    "tf32": ["dtype=float32", "tf32=true"],
    "bfloat16": ["dtype=bfloat16"],
}
CASES = ("sgd", "adamw")
DROPPED_BITS = 13  # of float32's 23; TF32 keeps 10


class RoundedFactors(TorchDispatchMode):
    """Rounds the factors of float32 matrix products as TF32 does: to the nearest, halves away from zero."""

    FACTORS: ClassVar[dict[Any, tuple[int, int]]] = {
        torch.ops.aten.mm.default: (0, 1),
        torch.ops.aten.bmm.default: (0, 1),
        torch.ops.aten.addmm.default: (1, 2),
        torch.ops.aten.baddbmm.default: (1, 2),
    }

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = list(args)
        for place in self.FACTORS.get(function, ()):
            args[place] = rounded(args[place])
        return function(*args, **(kwargs or {}))


def rounded(factor: Tensor) -> Tensor:
    """A float32 tensor with 10 bits after the leading one; of another dtype, as it is."""
    if factor.dtype is not torch.float32:
        return factor
    bits = factor.contiguous().view(torch.int32)
    return ((bits + (1 << (DROPPED_BITS - 1))) & -(1 << DROPPED_BITS)).view(torch.float32)


def emulation(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context in which a CPU computes as TF32 would; fused attention is taken apart, so that its products show."""
    if precision != "tf32" or device != "cpu":
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    stack.enter_context(RoundedFactors())
    return stack


def measured(case: str, precision: str, device: str, words: list[str]) -> dict[str, np.ndarray]:
    """The query-key rows of one run; `val_loss`, its evaluations; `b_K / b_Q`, the norms of their gradients."""
    given = [f"case={case}", f"device={device}", *PRECISIONS[precision], *words]
    with tempfile.TemporaryDirectory() as folder, emulation(precision, device):
        outcome = run(single(given).config, Path(folder), ["benchmarks.precision_effect"], live=False)
        assert outcome.state == "finished", outcome
        evaluated, biases = (metrics.read(Path(folder), table) for table in ("eval", "biases"))
        return metrics.read(Path(folder), "heads") | {
            "val_loss": evaluated["loss"][evaluated["split"] == "val"],
            "b_K / b_Q": biases["key_norm"] / biases["query_norm"],
        }


def summary(rows: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> dict[str, float]:
    """What a reader of the figures wants to know, and how far it is from the float32 run; after the warm-up."""
    late = rows["step"] >= 100 if rows["step"].max() > 100 else rows["step"] > 0
    last = rows["step"] == rows["step"].max()

    def ratio(of: str, to: str) -> float:
        known = rows[of][late] / rows[to][late]
        known = known[np.isfinite(known)]
        return float(np.median(known)) if len(known) else float("nan")

    def off(column: str, where: np.ndarray) -> float:
        return float(np.median(np.abs(rows[column][where] / reference[column][where] - 1)))

    return {
        "rho": float(np.median(rows["rho"][late])),
        "rho_bias": float(np.median(rows["rho_bias"][late])),
        "rho_bias / floor": ratio("rho_bias", "rho_floor"),
        "rho off": off("rho", late),
        "beta off": off("beta", last),
        "largest charge_change": float(rows["charge_change"][last].max()),
        "drift / floor": ratio("drift_bias", "drift_floor"),
        "drift / predicted": ratio("drift_bias", "drift_predicted"),
        "b_K / b_Q": float(np.median(rows["b_K / b_Q"])),
        "val_loss": float(rows["val_loss"][-1]),
    }


def compare(device: str, words: list[str], precisions: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """case → precision → `summary`."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for case in CASES:
        reference = measured(case, "float32", device, words)
        found[case] = {"float32": summary(reference, reference)}
        for precision in precisions:
            if precision != "float32":
                found[case][precision] = summary(measured(case, precision, device, words), reference)
    return found


def show(found: dict[str, dict[str, dict[str, float]]]) -> Table:
    columns = list(next(iter(next(iter(found.values())).values())))
    table = Table(title="gradients in lower precision; medians over heads and steps")
    for column in ("case", "precision", *columns):
        table.add_column(column, justify="left" if column in ("case", "precision") else "right")
    for case, by_precision in found.items():
        for precision, values in by_precision.items():
            table.add_row(case, precision, *(f"{values[column]:.3g}" for column in columns))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="write the figures as JSON too")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="overrides, as for ident train")
    arguments = parser.parse_args()
    words = [f"steps={arguments.steps}", f"eval.every={arguments.steps}", *arguments.words]
    found = compare(arguments.device, words, list(PRECISIONS))
    Console(width=160).print(show(found))
    if arguments.out:
        facts = {"date": str(date.today()), "machine": platform.platform(), "torch": torch.__version__}
        arguments.out.write_text(json.dumps(facts | {"words": words, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
