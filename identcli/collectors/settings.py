"""What the optimizer is about to do with a circuit's parameters: the few settings that exact predictions need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepSettings:
    """One step's settings, where they are the same for all tensors of a circuit; None where they differ or are unknown.

    plain: W ← W − lr·(g + λW) exactly (SGD without momentum, not maximizing). decoupled: W ← W − lr·λ·W − (something
    that λ does not enter), as AdamW. lr, decay of the matrices and decay of the vectors.
    """

    plain: bool
    decoupled: bool
    lr: float | None
    decay_matrices: float | None
    decay_vectors: float | None


def read_settings(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], names: Iterable[str]
) -> StepSettings:
    """The settings of the named parameters' groups before a step; all None when the optimizer lacks one of them."""
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found = [(parameters[name].ndim, group_of.get(id(parameters[name]))) for name in names]
    if not found or any(group is None for _, group in found):
        return StepSettings(False, False, None, None, None)
    groups = [(ndim, group) for ndim, group in found if group is not None]
    sgd = isinstance(optimizer, torch.optim.SGD)
    plain = sgd and not any(g.get("momentum") or g.get("maximize") for _, g in groups)
    decoupled = isinstance(optimizer, torch.optim.AdamW) and not any(g.get("maximize") for _, g in groups)
    return StepSettings(
        plain,
        decoupled,
        _shared([g["lr"] for _, g in groups]),
        _shared([g.get("weight_decay", 0.0) for ndim, g in groups if ndim > 1]),
        _shared([g.get("weight_decay", 0.0) for ndim, g in groups if ndim == 1] or [0.0]),
    )


def _shared(values: list) -> float | None:
    numbers = {float(value) for value in values}
    return numbers.pop() if len(numbers) == 1 else None
