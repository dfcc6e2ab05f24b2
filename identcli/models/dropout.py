"""Dropout at the speed of the machine: on a CPU torch draws its masks one by one on one core.

Here a mask is two random bytes an entry, kept and not the floats made of them. The function is torch's; the random
numbers are numpy's SFC64's, in half the time of torch's, of which one starts each mask. Two bytes give the probability
in steps of 2⁻¹⁶: it is `p` to 8e-6, and what is kept is scaled by the exact share.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 1 << 16


class _Source(threading.local):
    generator: torch.Generator | None = None


_source = _Source()


class Dropout(nn.Module):
    """In training each entry is 0 with probability p, else divided by 1 − p; the identity otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return _Drop.apply(x, self.p) if pays(x) else F.dropout(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def pays(x: Tensor) -> bool:
    """Accelerators and compilers have kernels of their own, and low precision wants torch's care with sums."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


@contextmanager
def masks_from(seed: int) -> Iterator[None]:
    """What this thread draws in the meantime follows from the seed alone, whatever other threads draw."""
    _source.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _source.generator = None


def seeds(count: int) -> list[int]:
    """From torch's global generator, or that of `masks_from`: what starts with one can be drawn in any thread."""
    return torch.randint(1 << 62, (count,), generator=_source.generator).tolist()


def draw(count: int, seed: int) -> Tensor:
    """Uniform int16 (count,), 64 bits at a time."""
    numbers = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(numbers.view(np.int16))[:count]


def threshold(p: float) -> tuple[int, float]:
    """The least int16 that is kept, and 1 / (share kept)."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    return dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        drawn = draw(x.numel(), *seeds(1)).view(x.shape)
        ctx.save_for_backward(drawn)
        return _kept(drawn, p, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (drawn,) = ctx.saved_tensors
        return _kept(drawn, ctx.p, gradient), None


def _kept(drawn: Tensor, p: float, x: Tensor) -> Tensor:
    least, scale = threshold(p)
    return mask(drawn, least, x).mul_(scale).mul_(x)


def mask(drawn: Tensor, least: int, like: Tensor) -> Tensor:
    """1 where it is kept, else 0: straight as floats, since torch multiplies a float by a bool three times slower."""
    return torch.ge(drawn, least, out=torch.empty_like(like))
