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
    for old, new in zip(_blocks(group, before), _blocks(group, after), strict=True):
        difference = Pair(torch.cat([new.A, old.A], -2), torch.cat([new.B, -old.B], -2))
        norms = [_squared_norm(pair) for pair in (difference, old)]
        extra = norms[0].ndim - changed.ndim
        changed, whole = (
            total + norm.flatten(norm.ndim - extra).sum(-1) if extra else total + norm
            for total, norm in zip((changed, whole), norms, strict=True)
        )
    return (changed / whole).sqrt()


def _blocks(group: Group, pair: Pair) -> list[Pair]:
    """The parts of the pair whose products the model uses: (…, pairs, 1, columns) complex, (…, D − rotary, columns)."""
    blocks = []
    if group.rotary:
        # v̄ᵀu: the product below transposes without conjugating.
        blocks.append(Pair(rotated_rows(group, pair.A)[..., None, :], rotated_rows(group, pair.B).conj()[..., None, :]))
    if group.plain:
        blocks.append(Pair(plain_rows(group, pair.A), plain_rows(group, pair.B)))
    return blocks


def _squared_norm(pair: Pair) -> Tensor:
    of = triangles(pair)
    return (of.B @ of.A.mT).abs().square().sum((-2, -1))
