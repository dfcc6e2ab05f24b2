"""Where and how exactly a step is computed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from identcli.architecture.errors import UserError


@dataclass(frozen=True)
class Precision:
    """The device, and the dtype of the matrix products. Weights, gradients and optimizer state are always float32.

    dtype: float32, or bfloat16 through autocast. tf32 lets an NVIDIA GPU round the factors of float32 products to 10
    bits.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    tf32: bool = False

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
