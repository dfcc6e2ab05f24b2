"""Dropout at the speed of the machine: on a CPU torch draws its masks one by one on one core.

Here a mask is two random bytes an entry, kept and not the floats made of them. The function is torch's, the random
numbers others. Two bytes give the probability in steps of 2⁻¹⁶: it is `p` to 8e-6, and what is kept is scaled by the
exact share.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 1 << 16


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


def draw(shape: torch.Size | tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """Uniform int16, 64 bits at a time; from torch's global generator, if no other is given."""
    count = math.prod(shape)
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return bits.view(torch.int16)[:count].view(shape)


def threshold(p: float) -> tuple[int, float]:
    """The least int16 that is kept, and 1 / (share kept)."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
    return dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        drawn = draw(x.shape)
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
