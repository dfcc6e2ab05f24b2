"""A batch through the model in parts of its rows, forwards and back; on a CPU side by side.

torch shares out each operation to all cores, and at its end they wait for the slowest. The parts of a batch know
nothing of each other: where each core has parts of its own, it waits once in a step. At the paper's sizes a step takes
an eighth less on two cores; at small ones Python, which does one thing at a time, would take longer than is gained.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from identcli.models.dropout import masks_from, seeds
from identcli.symmetry.threads import side_by_side
from identcli.training.precision import Precision

Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # inputs and targets to (logits, mean loss)
Part = tuple[Tensor, Tensor, float]  # inputs, targets, its weight

T = TypeVar("T")
R = TypeVar("R")


def parts_of(inputs: Tensor, targets: Tensor, precision: Precision, weight: float = 1.0) -> list[Part]:
    """The batch (B, …) in parts of rows, each with its share of the weight."""
    rows = precision.rows_at_a_time or len(inputs)
    parts = zip(inputs.split(rows), targets.split(rows), strict=True)
    return [(some, of_some, weight * len(some) / len(inputs)) for some, of_some in parts]


def backward(model: Loss, parameters: Sequence[nn.Parameter], parts: Sequence[Part], precision: Precision) -> Tensor:
    """The parts' weighted loss (); its gradient is left in `.grad`, None before. Nothing waits for the device.

    Where parts may go side by side, dropout's masks of a part don't depend on how many threads there are.
    """
    if not precision.side_by_side:
        total = torch.zeros((), device=precision.device)
        for part in parts:
            loss = _loss(model, part, precision)
            loss.backward()
            total += loss.detach()
        return total

    def of_some(own: Sequence[tuple[Part, int]]) -> tuple[Tensor, list[Tensor]]:
        total, gradients = torch.zeros(()), [torch.zeros_like(parameter) for parameter in parameters]
        for part, seed in own:
            with torch.enable_grad(), masks_from(seed):
                loss = _loss(model, part, precision)
                torch._foreach_add_(gradients, torch.autograd.grad(loss, parameters))
            total += loss.detach()
        return total, gradients

    cores = _cores(parts, precision)
    seeded = list(zip(parts, seeds(len(parts)), strict=True))
    (total, gradients), *others = _each(of_some, [seeded[core::cores] for core in range(cores)], cores)
    for of_others, more in others:
        total += of_others
        torch._foreach_add_(gradients, more)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return total


@torch.no_grad()
def forward(model: Loss, parts: Sequence[Part], precision: Precision) -> Tensor:
    """The parts' weighted loss ()."""
    return torch.stack(_each(lambda part: _loss(model, part, precision), parts, _cores(parts, precision))).sum()


def _loss(model: Loss, part: Part, precision: Precision) -> Tensor:
    inputs, targets, weight = part
    with precision.autocast():
        _, loss = model(inputs, targets)
    return loss if weight == 1 else loss * weight


def _cores(parts: Sequence[Part], precision: Precision) -> int:
    """How many work each on parts of its own: all of them, if none would be left without a part, or else none."""
    threads = torch.get_num_threads()
    return threads if precision.side_by_side and len(parts) % threads == 0 else 1


def _each(work: Callable[[T], R], parts: Sequence[T], cores: int) -> list[R]:
    return side_by_side(work, parts) if cores > 1 else [work(part) for part in parts]
