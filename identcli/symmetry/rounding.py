"""What rounding of the stored weights alone does to ρ and to the drift: below it a measurement says nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.architecture.pairs import PairFamily
from identcli.symmetry.pair import Pair, plain_rows


class Floors(NamedTuple):
    """The ρ and the drift (…) of an update that is nothing but rounding."""

    share: Tensor
    drift: Tensor


def rounding_variance(weights: Tensor, stored_as: torch.dtype) -> Tensor:
    """ulp²/12 of each weight: the variance of rounding to the nearest number of `stored_as`. Zero is exact."""
    # The bits of the exponent alone are the power of two at or below |weight|, and 0 for 0.
    power = (weights.double().view(torch.int64) & 0x7FF0_0000_0000_0000).view(torch.float64)
    return power.square_().mul_(torch.finfo(stored_as).eps ** 2 / 12).to(weights.dtype)


def share_floor(variance: Pair, isotropic_share: float, update_energy: Tensor) -> Tensor:
    """The ρ (…) that rounding alone would give: Σ ulp²/12 · (isotropic mean) / ‖update‖². A zero update gives NaN.

    Rounding is not quite isotropic: it is larger on larger weights, and so along the orbit. The true floor is up to
    1 + 2/D times this one for GL(D), up to twice for rotated pairs of rows, and equal where all weights share a
    spacing.
    """
    of_A, of_B = (v.sum((-2, -1)) for v in variance[:2])
    return _share(of_A + of_B, isotropic_share, update_energy)


def _share(noise: Tensor, isotropic_share: float, update_energy: Tensor) -> Tensor:
    return noise * isotropic_share / update_energy


def charge_floor(group: Group, pair: Pair, variance: Pair) -> Tensor:
    """The root mean square (…) of ‖change of the charge‖ when only rounding moves the weights.

    With independent errors of variance v_ie on W_ie, E‖δ(WWᵀ)‖² = 2 Σ_e (Σ_i v_ie)(Σ_j W_je²) + 2 Σ_ie v_ie W_ie² to
    first order, summed over A and B; a rotated pair of rows has E δ(|u|²)² = 4 Σ v W² over its two rows.
    """
    of_A, of_B = (
        _change_of_charge(group, W, v, plain_rows(group, v).sum(-2))
        for W, v in zip(pair[:2], variance[:2], strict=True)
    )
    return (of_A + of_B).sqrt()


def floors(family: PairFamily, pair: Pair, stored_as: torch.dtype, update_energy: Tensor) -> Floors:
    """Both of a pair that is stored so: one matrix after the other, whose variance is then still in the cache."""
    group, noise, change = family.group, [], []
    for W in pair[:2]:
        v = rounding_variance(W, stored_as)
        columns = plain_rows(group, v).sum(-2)
        noise.append(v.sum((-2, -1)) if group.rotary else columns.sum(-1))
        change.append(_change_of_charge(group, W, v, columns))
    share = _share(noise[0] + noise[1], family.isotropic_share, update_energy)
    return Floors(share, (change[0] + change[1]).sqrt())


def _change_of_charge(group: Group, W: Tensor, v: Tensor, columns: Tensor) -> Tensor:
    """One matrix's part of `charge_floor`², (…). columns: the variance v summed over the plain rows."""
    squares = W.square()
    change = (columns * plain_rows(group, squares).sum(-2)).sum(-1)
    squares.mul_(v)
    change = change + squares.sum((-2, -1))
    if group.rotary:
        change = change + squares[..., : group.rotary, :].sum((-2, -1))
    return 2 * change
