"""β and τ: how far a pair is from balance, and how one step, or the whole training, has changed that (5.1, 5.3)."""

import torch
from torch import Tensor

from identcli.collectors.observed import Observed


def measure_imbalance(step: Observed) -> dict[str, Tensor]:
    """`beta`, `tau`, `drift`, `charge_change`, `beta_bias`, `drift_bias`, `drift_floor`, each (L, G).

    beta = ‖charge after‖, tau = tr(AAᵀ − BBᵀ) after, drift = ‖charge after − before‖, charge_change = ‖charge after −
    at the start‖ / ‖at the start‖ (NaN when that is zero); `_bias`: the same with the bias columns inside. For GL(D)
    the charge is C, so beta = ‖C‖_F.
    """
    start = torch.linalg.vector_norm(step.start, dim=-1)
    start = torch.where(start > 0, start, torch.nan)
    return {
        "beta": _norm(step.charge_after),
        "tau": step.trace_after,
        "drift": _norm(step.charge_after - step.charge_before),
        "charge_change": _norm(step.charge_after - step.start) / start,
        "beta_bias": _norm(step.augmented_charge_after),
        "drift_bias": _norm(step.augmented_charge_after - step.augmented_charge_before),
        "drift_floor": step.floors.drift,
    }


def _norm(charge: Tensor) -> Tensor:
    return torch.linalg.vector_norm(charge, dim=-1)
