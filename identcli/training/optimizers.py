"""The optimizers of the paper's cases, by name, with nanoGPT's decay groups."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from identcli.architecture.errors import UserError


def build_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float, **settings: Any) -> torch.optim.Optimizer:
    """`sgd` (weight_decay, momentum) or `adamw` (weight_decay, betas, eps) over two groups: decay acts on matrices
    only.

    Matrices are parameters with two axes or more, embeddings among them, as in nanoGPT; biases and norms do not decay.
    """
    trained = [p for p in parameters if p.requires_grad]
    decay = settings.pop("weight_decay")
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    if name not in OPTIMIZERS:
        raise UserError(f"optimizer.name={name}: must be one of {', '.join(OPTIMIZERS)}")
    # One fused kernel for all tensors, where the device has it. Not with momentum: torch's fused SGD takes momentum
    # buffers for all tensors or for none, and a rebalancing clears some.
    fused = {p.device.type for p in trained} <= {"cpu", "cuda"} and not settings.get("momentum")
    return OPTIMIZERS[name]([g for g in groups if g["params"]], lr=lr, fused=fused, **settings)


def _untraced(original: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimizer with its methods as they are written, for a start in half the time.

    torch wraps them so that its compiler leaves them alone; the first call of a wrapper imports the compiler, which
    takes about as long as importing torch. No optimizer here is ever compiled.
    """
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(original, name)) for name in wrapped}
    return type(original.__name__, (original,), methods | {"step": torch.no_grad()(inspect.unwrap(original.step))})


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": _untraced(torch.optim.SGD),
    "adamw": _untraced(torch.optim.AdamW),
}
