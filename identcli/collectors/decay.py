"""How much of an update is weight decay."""

import torch
from torch import Tensor

from identcli.collectors.observed import Observed


def measure_decay(step: Observed) -> dict[str, Tensor]:
    """`decay_share` (L, G): ‖lr·λ·W‖² / ‖update‖², weights only.

    Undefined (NaN) when decay does not enter the update as a term of its own: SGD with momentum, Adam with coupled
    decay, an unknown optimizer, or different settings within the circuit.
    """
    lr, decay = step.settings.lr, step.settings.decay_matrices
    if lr is None or decay is None or not (step.settings.plain or step.settings.decoupled):
        return {"decay_share": torch.full_like(step.update_energy, torch.nan)}
    weights = sum(gram.diagonal(dim1=-2, dim2=-1).sum(-1) for gram in step.grams_before)
    return {"decay_share": (lr * decay) ** 2 * weights / step.update_energy}
