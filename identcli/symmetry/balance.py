"""The balanced point of an orbit that is nearest to the weights: the paper's rebalancing (5.2.2; theory 14)."""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.act import Move
from identcli.symmetry.pair import Pair, plain_rows, rotated_rows


class Balance(NamedTuple):
    """The move to the balanced point, and for which pairs (…) one exists."""

    step: Move
    exists: Tensor


def balance(group: Group, pair: Pair) -> Balance:
    """The S of the group with charge(S A, S⁻ᵀ B) = 0 and ‖SA − A‖² + ‖S⁻ᵀB − B‖² least.

    Unrotated rows: A = R_Aᵀ Q_Aᵀ, B = R_Bᵀ Q_Bᵀ (QR), R_B R_Aᵀ = U Σ Vᵀ. The balanced points are
    O(Σ^½ Vᵀ Q_Aᵀ, Σ^½ Uᵀ Q_Bᵀ) with O orthogonal; the nearest has O = W Zᵀ from the SVD W s Zᵀ of
    R_Aᵀ V Σ^½ + R_Bᵀ U Σ^½ (Procrustes). Hence S = O Σ^-½ Uᵀ R_B and S⁻ᵀ = O Σ^-½ Vᵀ R_A, with no inverse taken.
    A balanced pair gives S = 1, so balancing is idempotent.
    Rotated pair of rows: the scale (|v|²/|u|²)^¼, no rotation: every balanced point has that scale, angle 0 is nearest.

    Where the product BᵀA has lost rank (σ_min ≤ D·ε·σ_max; also D > E) the orbit has in general no balanced point, only
    a limit outside it. Such a block of unrotated rows is left as it is, S = 1 there, and so is a rotated pair of rows
    that is zero on one side; the other rows are balanced all the same. `exists` is False for a pair with any such part.

    Bias columns that are not inside A and B take no part here; the move carries them along (see `act`).
    """
    S = torch.eye(group.size, dtype=pair.A.dtype, device=pair.A.device)
    S = S.expand(*pair.A.shape[:-1], group.size).clone()
    T = S.clone()
    exists = torch.ones(pair.A.shape[:-2], dtype=torch.bool, device=pair.A.device)
    if group.rotary:
        scale, known = _balance_rotated(group, pair)
        for rows in zip(*group.pairs, strict=True):
            S[..., list(rows), list(rows)] = scale
            T[..., list(rows), list(rows)] = 1 / scale
        exists = exists & known.all(-1)
    if group.plain:
        plain, known = _balance_plain(Pair(plain_rows(group, pair.A), plain_rows(group, pair.B)))
        S[..., group.rotary :, group.rotary :] = plain.S
        T[..., group.rotary :, group.rotary :] = plain.S_inverse_T
        exists = exists & known
    return Balance(Move(S, T), exists)


def _balance_rotated(group: Group, pair: Pair) -> tuple[Tensor, Tensor]:
    of_A = rotated_rows(group, pair.A).abs().square().sum(-1)
    of_B = rotated_rows(group, pair.B).abs().square().sum(-1)
    exists = (of_A > 0) & (of_B > 0)
    one = torch.ones_like(of_A)
    return (torch.where(exists, of_B, one) / torch.where(exists, of_A, one)) ** 0.25, exists


def _balance_plain(pair: Pair) -> tuple[Move, Tensor]:
    D = pair.A.shape[-2]
    eye = torch.eye(D, dtype=pair.A.dtype, device=pair.A.device)
    if min(pair.A.shape[-1], pair.B.shape[-1]) < D:
        eye = eye.expand(*pair.A.shape[:-1], D)
        return Move(eye, eye), torch.zeros(pair.A.shape[:-2], dtype=torch.bool, device=pair.A.device)
    R_A = torch.linalg.qr(pair.A.mT, mode="r").R
    R_B = torch.linalg.qr(pair.B.mT, mode="r").R
    U, sigma, Vt = torch.linalg.svd(R_B @ R_A.mT)
    exists = sigma[..., -1] > D * torch.finfo(sigma.dtype).eps * sigma[..., 0]
    root = torch.where(exists[..., None], sigma, 1).sqrt()
    W, _, Zt = torch.linalg.svd((R_A.mT @ Vt.mT + R_B.mT @ U) * root.unsqueeze(-2))
    O_inverse_root = W @ Zt / root.unsqueeze(-2)
    keep = exists[..., None, None]
    S = torch.where(keep, O_inverse_root @ U.mT @ R_B, eye)
    T = torch.where(keep, O_inverse_root @ Vt @ R_A, eye)
    return Move(S, T), exists
