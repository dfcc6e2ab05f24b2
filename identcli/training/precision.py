"""Where and how exactly a step is computed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from identcli.architecture.errors import UserError


@dataclass(frozen=True)
class Precision:
    """The device, and the dtype of the matrix products. Weights, gradients and optimizer state are always float32.

    dtype: float32, or bfloat16 through autocast. tf32 lets an NVIDIA GPU round the factors of float32 products to 10
    bits. Both make the gradient less exact and nothing else: g_A Aᵀ = B g_Bᵀ, from which gradient flow's laws follow,
    then holds to 2⁻¹¹ or 2⁻⁹ instead of 2⁻²⁴. β and AdamW's ρ hardly notice (bfloat16: 0.1 % and 0.3 % off). SGD's ρ,
    zero in theory, does: on the bias-augmented pair 1.03 times the rounding floor in float32, 51 times in TF32, 4,300
    times in bfloat16, where its drift is 1.7 times the predicted one. So what is said of SGD's ρ or drift wants float32
    without TF32 (docs/GPU.md).

    rows_at_a_time: how many rows of a batch pass through the model together, forwards and back, None for all. The
    gradient is the same up to the order of a sum.
    side_by_side: whether these parts may each have a core of its own (`training.passes`).
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    tf32: bool = False
    rows_at_a_time: int | None = None
    side_by_side: bool = False

    def autocast(self) -> AbstractContextManager:
        """The context in which to run the model."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def apply(self) -> None:
        """Set the process-wide switch for TF32."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")


def choose_device(name: str) -> torch.device:
    """`auto` takes cuda, then mps, then cpu. A device that is not there is a UserError, never replaced silently."""
    known = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    there = [kind for kind, is_there in known.items() if is_there]
    if name == "auto":
        return torch.device(there[0])
    if name not in there:
        raise UserError(f"device={name}: not available on this machine, which has {', '.join(there)}")
    return torch.device(name)
