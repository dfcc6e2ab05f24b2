"""The product BᵀA, all of a pair that the model uses: its size, its spectrum, and how far a move has changed it.

BᵀA is as large as the embedding squared, and is never formed: with Aᵀ = Q_A R_A and Bᵀ = Q_B R_B (QR) it is
Q_B (R_B R_Aᵀ) Q_Aᵀ, so R_B R_Aᵀ (D, D) has its norm and its singular values.
"""

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.pair import Pair, plain_rows, rotated_rows


def triangles(pair: Pair) -> Pair:
    """(R_A, R_B), each (…, ≤ D, D): AAᵀ = R_Aᵀ R_A and BBᵀ = R_Bᵀ R_B, bias columns only when inside A and B."""
    return Pair(torch.linalg.qr(pair.A.mT, mode="r").R, torch.linalg.qr(pair.B.mT, mode="r").R)


def spectrum(of: Pair) -> Tensor:
    """Singular values (…, min(D, columns)) of BᵀA from its `triangles`, descending; no move changes them."""
    return torch.linalg.svdvals(of.B @ of.A.mT)


def change(group: Group, before: Pair, after: Pair) -> Tensor:
    """‖B'ᵀA' − BᵀA‖_F / ‖BᵀA‖_F, (…), exact to rounding. A product that was 0 gives NaN, or inf when it changed.

    The difference is [B'; −B]ᵀ [A'; A], whose triangles are (2D, 2D): nothing cancels but entries of the products
    themselves, where a difference of Gram matrices would lose half of the digits. With rotary positions the model uses
    one product for each rotated pair of rows, v̄ᵀu of its complex rows, besides that of the other rows: the norms are
    then those of all these products together, and W_KᵀW_Q, their real part, changes by no more.
    """
    changed, whole = before.A.new_zeros(before.A.shape[:-2]), before.A.new_zeros(before.A.shape[:-2])
    # One side after the other: of a large layer each copy of a side counts.
    of_A = [_both(new, old) for new, old in zip(_blocks(group, after.A), _blocks(group, before.A), strict=True)]
    of_B = [_both(new, old, -1) for new, old in zip(_blocks(group, after.B), _blocks(group, before.B), strict=True)]
    for (R_A, AA), (R_B, BB) in zip(of_A, of_B, strict=True):
        # v̄ᵀu has conj(v) on the left; of real blocks the conjugate is the block itself.
        difference = (R_B.conj() @ R_A.mT).abs().square().sum((-2, -1))
        size = (AA * BB).real.sum((-2, -1))
        changed = changed + difference.reshape(*changed.shape, -1).sum(-1)
        whole = whole + size.reshape(*whole.shape, -1).sum(-1)
    return (changed / whole).sqrt()


def _blocks(group: Group, matrix: Tensor) -> list[Tensor]:
    """The rows that make a product of their own: (…, rotary/2, 1, columns) complex, and (…, D − rotary, columns)."""
    blocks = [rotated_rows(group, matrix)[..., None, :]] if group.rotary else []
    return [*blocks, plain_rows(group, matrix)] if group.plain else blocks


def _both(new: Tensor, old: Tensor, sign: int = 1) -> tuple[Tensor, Tensor]:
    """The triangle of [new; sign · old], and the Gram matrix of old."""
    return torch.linalg.qr(torch.cat([new, sign * old], -2).mT, mode="r").R, old @ old.mH
