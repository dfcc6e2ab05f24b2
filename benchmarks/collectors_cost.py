"""What measuring costs: steps with collectors against steps without, and one measurement against a plain loop.

    python -m benchmarks.collectors_cost [--scale demo cpu]

One run of `ident train collect=paper`, writer included, in which two steps are measured and two are not, in turn, each
timed by itself. Two processes that do the very same differ by some percent for as long as they live (by where their
memory lies), and two blocks of ten steps by as much, which is more than what is looked for here. Of ten steps of which
one is measured, one comes right behind it (it finds the cache taken); eight are neither. The times are put together so.

Then one measurement of all heads, all 16 columns of it, against a loop over layers and heads that somebody would write
in numpy from the paper's formulas, in float64, for ρ, β, μ and drift alone, and with ρ, β and drift of the pairs with
their biases as well. Both must give the same numbers, to rounding, or there are no times.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.loops import Apart, Here, ident, sizes_of
from benchmarks.turns import Comparison, Goal, Record, in_turn, options, table_of
from identcli.collectors import attach, every
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.memory import keep_freed_memory

# Steps in turn, and whether they are measured. The second of two that are knows the Gram matrices from the first.
STEPS = {"behind": False, "not": False, "measured": True, "again": True}
TURNS = {"demo": 400, "cpu": 150, "tiny": 2}
WORDS = ["collect=paper"]
MOST = {("demo", "every 10 steps"): 1.02, ("cpu", "every 10 steps"): 1.02, ("cpu", "every step"): 1.15}

# Float64 rounding, times the condition of a difference of charges and of an eigenvalue: 1e3 to 1e5 times 1e-16.
TOLERANCE = 1e-9


def main(words: Sequence[str] | None = None) -> Path | None:
    parser = options(__doc__)
    parser.add_argument("--scale", nargs="+", default=["demo", "cpu"], choices=list(TURNS))
    asked = parser.parse_args(words)
    record = Record("collectors_cost", asked)
    scales = ["tiny"] if asked.quick else asked.scale
    comparisons = [each for scale in scales for each in runs(scale, asked.threads, Here if asked.quick else Apart)]
    torch.set_num_threads(asked.threads)
    keep_freed_memory()  # as a run does
    comparisons += [each for scale in scales for each in one_measurement(scale, 2 if asked.quick else 15)]
    return record.finish("Collectors", table_of(comparisons), [each.to_dict() for each in comparisons])


def in_turns(step: int) -> bool:
    return list(STEPS.values())[step % len(STEPS)]


def runs(scale: str, threads: int, loop: Any) -> list[Comparison]:
    """Seconds a step, measured every 10 steps, every step, or not."""
    with tempfile.TemporaryDirectory() as place, loop(ident, scale, threads, Path(place), WORDS, in_turns) as run:
        took = in_turn(dict.fromkeys(STEPS, partial(run, 1)), TURNS[scale])
    turns = zip(took["measured"], took["behind"], took["not"], strict=True)
    seconds = {
        "every 10 steps": [(measured + behind + 8 * not_measured) / 10 for measured, behind, not_measured in turns],
        "every step": took["again"],
    }
    comparisons = []
    for name, first in seconds.items():
        most = MOST.get((scale, name))
        goal = Goal("pairs", "at most", most) if most else None
        what = f"a step at scale={scale}, measured {name}"
        comparisons.append(Comparison(what, "measured", "not", first, took["not"], goal=goal))
    return comparisons


def one_measurement(scale: str, blocks: int) -> list[Comparison]:
    """One measurement of all heads against the plain loop. SystemExit when they differ."""
    sizes, _ = sizes_of(scale)
    step, states, found = measured_step(sizes)
    before, after = states()
    check(plain(before, after, sizes["n_head"], biases=True), found)
    comparisons = []
    for biases in (False, True):
        loop = partial(plain, before, after, sizes["n_head"], biases)
        took = in_turn({"plain": rested(loop), "ident": rested(step)}, blocks)
        heads = sizes["n_layer"] * sizes["n_head"]
        what = f"one measurement of {heads} heads, D = {sizes['n_embd'] // sizes['n_head']}"
        peer = "plain loop with biases" if biases else "plain loop"
        comparisons.append(Comparison(what, peer, "ident", took["plain"], took["ident"]))
    return comparisons


def rested(work: Callable[[], object]) -> Callable[[], float]:
    """Seconds of `work`, begun when the other side's threads have stopped to look for more (OpenBLAS: some 30 ms)."""

    def seconds() -> float:
        time.sleep(0.2)
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return seconds


class Shift(torch.optim.Optimizer):
    """Adds the same small random update each time: a step that costs next to nothing, with something to measure."""

    def __init__(self, parameters: Sequence[Tensor], size: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": size})
        self._updates = [size * torch.randn_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        torch._foreach_add_(self.param_groups[0]["params"], self._updates)


State = dict[str, np.ndarray]


def measured_step(
    sizes: Mapping[str, Any],
) -> tuple[Callable[[], None], Callable[[], tuple[State, State]], dict[str, np.ndarray]]:
    """A step that is measured; one that gives the weights of attention before and after it; the latest columns."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=65, **sizes))
    named = {name: parameter for name, parameter in model.named_parameters() if ".attn." in name}
    optimizer = Shift([parameter for name, parameter in named.items() if "c_attn" in name])
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    found: dict[str, np.ndarray] = {}

    def sink(table: str, step: int, columns: dict[str, Any]) -> None:
        if table == "heads":
            found.update(columns)

    collector = attach(optimizer, named, nanogpt(model.config.attention), when=every(1), sink=sink)

    def step() -> None:
        optimizer.step()
        collector.flush()

    def states() -> tuple[State, State]:
        before = _copies(named)
        step()
        return before, _copies(named)

    return step, states, found


def _copies(named: Mapping[str, Tensor]) -> State:
    return {name: parameter.detach().numpy().copy() for name, parameter in named.items()}


def plain(before: State, after: State, n_head: int, biases: bool) -> dict[str, list[float]]:
    """The paper's quantities, a head at a time, in float64."""
    columns: dict[str, list[float]] = {}
    layers = sum(name.endswith("c_attn.weight") for name in before)
    for layer in range(layers):
        inside = f"transformer.h.{layer}.attn.c_attn."
        old, new = (_roles(state[f"{inside}weight"], state[f"{inside}bias"], n_head) for state in (before, after))
        for head in range(n_head):
            (A0, a0), (B0, _), (A1, a1), (B1, b1) = (role[head] for state in (old, new) for role in state)
            _, b0 = old[1][head]
            values = _of_a_pair(A0, B0, A1, B1)
            if biases:
                wide0, wide1 = np.column_stack([A0, a0]), np.column_stack([A1, a1])
                key_bias = ((b1 - b0) ** 2).sum()  # moves nothing at all: unidentified in full
                wide = _of_a_pair(wide0, B0, wide1, B1, key_bias)
                values |= {f"{name}_bias": wide[name] for name in ("rho", "beta", "drift")}
            for name, value in values.items():
                columns.setdefault(name, []).append(float(value))
    return columns


def _roles(weight: np.ndarray, bias: np.ndarray, n_head: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Queries, then keys: W (D, E) and b (D,) of each head."""
    width = weight.shape[1]
    size = width // n_head
    weight, bias = weight.astype(np.float64), bias.astype(np.float64)
    starts = [[part * width + head * size for head in range(n_head)] for part in range(2)]
    return [[(weight[start : start + size], bias[start : start + size]) for start in of_part] for of_part in starts]


def _of_a_pair(
    A: np.ndarray, B: np.ndarray, A1: np.ndarray, B1: np.ndarray, free: float = 0.0
) -> dict[str, float | np.floating]:
    """ρ from the Sylvester equation QX + XP = δA Aᵀ − B δBᵀ by eigenvectors of P = AAᵀ and Q = BBᵀ, and the rest."""
    dA, dB = A1 - A, B1 - B
    p, U = np.linalg.eigh(A @ A.T)
    q, V = np.linalg.eigh(B @ B.T)
    R = V.T @ (dA @ A.T - B @ dB.T) @ U
    explained = (R**2 / (q[:, None] + p[None, :])).sum()
    C0, C1 = A @ A.T - B @ B.T, A1 @ A1.T - B1 @ B1.T
    return {
        "rho": (explained + free) / ((dA**2).sum() + (dB**2).sum() + free),
        "beta": np.linalg.norm(C1),
        "mu": p[0] + q[0],
        "drift": np.linalg.norm(C1 - C0),
    }


def check(expected: Mapping[str, Sequence[float]], found: Mapping[str, np.ndarray]) -> None:
    """SystemExit when a column differs by more than rounding."""
    for name, values in expected.items():
        apart = float(np.max(np.abs(found[name] / np.array(values) - 1)))
        if not apart <= TOLERANCE:
            raise SystemExit(f"error: {name} differs from the plain loop's by {apart:.1e}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
