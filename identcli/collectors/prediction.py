"""The drift that theory predicts for one step of plain SGD, from the gradient alone (theory 15)."""

import torch
from torch import Tensor

from identcli.collectors.observed import Observed
from identcli.symmetry.charge import charge
from identcli.symmetry.pair import Pair, augmented, biases_alone


def measure_prediction(step: Observed) -> dict[str, Tensor]:
    """`drift_predicted` (L, G): the norm of the charge's change in one step W ← W − lr·(g + λW), on the augmented pair.

    Without decay lr² ‖g_A g_Aᵀ − g_B g_Bᵀ‖_F: the first order cancels, since g_A Aᵀ = B g_Bᵀ (Noether). With decay λ
    on the matrices and λ' on the biases, t = 1 − lr·λ, t' = 1 − lr·λ', of each augmented block [W b] with gradient [g
    γ]: change of [W b][W b]ᵀ = (t² − 1) WWᵀ + (t'² − 1) bbᵀ − lr (t' − t)(γbᵀ + bγᵀ) + lr² (ggᵀ + γγᵀ) + first-order
    terms that cancel between A and B. NaN for any other optimizer, with momentum, or without gradients.
    """
    settings = step.settings
    lr, matrices, vectors = settings.lr, settings.decay_matrices, settings.decay_vectors
    if step.gradient is None or not settings.plain or lr is None or matrices is None or vectors is None:
        return {"drift_predicted": torch.full_like(step.update_energy, torch.nan)}
    t, t_bias = 1 - lr * matrices, 1 - lr * vectors
    group = step.family.group
    biases, gradients = biases_alone(step.before), biases_alone(step.gradient)
    of_gradients = charge(group, augmented(group, gradients))
    change = lr**2 * (charge(group, step.gradient) + of_gradients) + (t**2 - 1) * step.charge_before
    if t_bias != t or t_bias != 1:
        alone = charge(group, augmented(group, biases))
        # γbᵀ + bγᵀ is (b+γ)(b+γ)ᵀ − bbᵀ − γγᵀ: the charge is quadratic, so its polar form needs no formula of its own.
        crossed = charge(group, augmented(group, _sum(biases, gradients))) - alone - of_gradients
        change = change + (t_bias**2 - 1) * alone - lr * (t_bias - t) * crossed
    return {"drift_predicted": torch.linalg.vector_norm(change, dim=-1)}


def _sum(x: Pair, y: Pair) -> Pair:
    a = None if x.a is None or y.a is None else x.a + y.a
    b = None if x.b is None or y.b is None else x.b + y.b
    return Pair(x.A + y.A, x.B + y.B, a, b)
