"""The training loop, top to bottom. Whatever else happens around a step comes in through `Events`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from identcli.training.parallel import Parallel
from identcli.training.passes import backward, forward, parts_of
from identcli.training.precision import Precision

Batch = tuple[Tensor, Tensor]
ALONE = Parallel()

# The clipped gradient of an update, left in the parameters, from its micro-batches: gives (loss, gradient norm), (2,).
Gradient = Callable[[Sequence[Batch]], Tensor]

# How many updates the host may launch on an accelerator before it has seen the loss of the first of them.
MOST_AHEAD = 16


@dataclass(frozen=True)
class Plan:
    """How many updates, and what is due after which: counts of updates; 0 stands for never."""

    steps: int
    grad_accum: int = 1
    clip: float = 1.0
    rebalance_every: int = 0
    eval_every: int = 0
    checkpoint_every: int = 0


class Events(Protocol):
    """What the loop reports. Update k leads from state k to state k + 1; the other three speak of a state."""

    def updated(self, step: int, loss: float, lr: float, grad_norm: float) -> None: ...
    def rebalance(self, state: int) -> None: ...
    def evaluated(self, state: int, losses: dict[str, float]) -> None: ...
    def checkpoint(self, state: int) -> None: ...


class Model(Protocol):
    """A module, or what torch.compile makes of it: inputs and targets to (logits, mean loss)."""

    training: bool

    def __call__(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...


class Diverged(Exception):
    """A loss or a gradient norm that is not finite, at an update that was therefore not made."""

    def __init__(self, step: int, what: str, value: float) -> None:
        super().__init__(f"diverged at step {step}: {what} is {value}")
        self.step = step


def train(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int, int], Batch],
    learning_rate: Callable[[int], float],
    plan: Plan,
    precision: Precision,
    eval_batches: Mapping[str, Iterable[Batch]],
    events: Events,
    start: int = 0,
    stop: Callable[[int], bool] = lambda state: False,
    parallel: Parallel = ALONE,
    record: Callable[[Gradient], Gradient] = lambda gradient: gradient,
) -> int:
    """Updates start … plan.steps − 1. `batch(step, micro)` gives inputs and targets; `model` gives (logits, loss).

    `parallel`: the processes that share every batch, this one among them.
    `record`: what makes the computation of a gradient one launch (`training.graph`); as it stands by default.
    `stop(state)` is asked at every state that is not the last, when all that is due there is done; True ends the loop.
    Returns the state reached.

    Raises Diverged before the update whose loss or gradient is not finite. On an accelerator the host runs up to
    MOST_AHEAD updates ahead, so that the device never waits for it: there the bad update has been made, but no row,
    evaluation or checkpoint of it is kept.
    """
    model.train()
    gradient = record(_gradient(model, optimizer, plan, precision, parallel))
    pending: list[tuple[int, float, Arriving]] = []
    most_pending = 1 if precision.device.type == "cpu" else MOST_AHEAD

    if start == 0:
        events.evaluated(0, evaluate(model, eval_batches, precision))
    for step in range(start, plan.steps):
        lr = learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss_and_norm = gradient([batch(step, micro) for micro in range(plan.grad_accum)])
        pending.append((step, lr, Arriving(loss_and_norm)))
        if len(pending) >= most_pending:
            _report(pending, events, leaving=most_pending // 2)
        optimizer.step()

        state, last = step + 1, step + 1 == plan.steps
        if _due(state, plan.rebalance_every):
            _report(pending, events)
            events.rebalance(state)
        if _due(state, plan.eval_every) or last:
            _report(pending, events)
            events.evaluated(state, evaluate(model, eval_batches, precision))
        if _due(state, plan.checkpoint_every) or (last and plan.checkpoint_every):
            _report(pending, events)
            events.checkpoint(state)
        if not last and stop(state):
            _report(pending, events)
            return state
    return plan.steps


def _gradient(
    model: Model, optimizer: torch.optim.Optimizer, plan: Plan, precision: Precision, parallel: Parallel
) -> Gradient:
    """The mean gradient over the micro-batches and all processes, clipped. Nothing in it waits for the device."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def gradient(micro_batches: Sequence[Batch]) -> Tensor:
        for parameter in parameters:  # optimizer.zero_grad() takes 0.2 ms of a demo step for the same
            parameter.grad = None
        own = [(parallel.share(inputs), parallel.share(targets)) for inputs, targets in micro_batches]
        parts = [part for batch in own for part in parts_of(*batch, precision, weight=1 / len(own))]
        total = parallel.average(parameters, backward(model, parameters, parts, precision))
        return torch.stack([total, nn.utils.clip_grad_norm_(parameters, plan.clip or math.inf)])

    return gradient


class Arriving:
    """Numbers on their way from the device to the host: on CUDA they travel while the device goes on."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._arrived = values, None
        if values.is_cuda:
            self._values = values.to("cpu", non_blocking=True)  # into pinned memory
            self._arrived = torch.cuda.Event(blocking=True)
            self._arrived.record()

    def fetch(self) -> list[float]:
        """The numbers, once they are there; what was launched after them isn't waited for (but on Apple's MPS)."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()


def _report(pending: list[tuple[int, float, Arriving]], events: Events, leaving: int = 0) -> None:
    """Report all pending updates but the newest `leaving`; raise at the first value that is not finite."""
    for _ in range(len(pending) - leaving):
        step, lr, arriving = pending.pop(0)
        loss, grad_norm = arriving.fetch()
        for what, value in (("the loss", loss), ("the gradient norm", grad_norm)):
            if not math.isfinite(value):
                raise Diverged(step, what, value)
        events.updated(step, loss, lr, grad_norm)


@torch.no_grad()
def evaluate(model: Model, batches: Mapping[str, Iterable[Batch]], precision: Precision) -> dict[str, float]:
    """Mean loss in nats a token over the batches of each split, without dropout; the model's mode is restored."""
    was_training = model.training
    model.eval()
    losses = {}
    for split, of_split in batches.items():
        each = [forward(model, parts_of(inputs, targets, precision), precision) for inputs, targets in of_split]
        losses[split] = torch.stack(each).mean().item()
    model.train(was_training)
    return losses


def _due(state: int, interval: int) -> bool:
    return interval > 0 and state % interval == 0
