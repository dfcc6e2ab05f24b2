"""What gradient flow conserves along an orbit's directions (5.1; theory 15)."""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.pair import Pair, plain_rows


class Grams(NamedTuple):
    """AAᵀ and BBᵀ, each (…, D, D)."""

    of_A: Tensor
    of_B: Tensor


def grams(pair: Pair) -> Grams:
    """Of the weights alone; bias columns count only when they are inside A and B (see `augmented`)."""
    return Grams(pair.A @ pair.A.mT, pair.B @ pair.B.mT)


def imbalance(pair: Pair) -> Tensor:
    """C = AAᵀ − BBᵀ, (…, D, D). Bias columns count only when they are inside A and B (see `augmented`)."""
    known = grams(pair)
    return known.of_A - known.of_B


def charge(group: Group, pair: Pair, known: Grams | None = None) -> Tensor:
    """The conserved numbers of the pair as a vector (…, n), n = rotary/2 + (D − rotary)².

    One number |u_j|² − |v_j|² for each rotated pair of rows (u of A, v of B), then the entries of C among the rows
    that no position rotates. For GL(D) that is C itself, flattened, so the vector's norm is ‖C‖_F = β. With rotary
    positions the rest of C is not conserved and does not appear. A sum over columns: the charge of the augmented pair
    is that of the weights plus that of the biases alone. `known`: the pair's grams, when the caller has them already.
    """
    parts = []
    if group.rotary:
        first, second = (list(rows) for rows in zip(*group.pairs, strict=True))
        rows = pair.A.square().sum(-1) - pair.B.square().sum(-1)
        parts.append(rows[..., first] + rows[..., second])
    if group.plain:
        if known is None:
            known = grams(Pair(plain_rows(group, pair.A), plain_rows(group, pair.B)))
        rest = slice(-group.plain, None)
        parts.append((known.of_A - known.of_B)[..., rest, rest].flatten(-2))
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def trace(known: Grams) -> Tensor:
    """τ = tr C = ‖A‖² − ‖B‖², (…): the signed imbalance of the paper (5.3)."""
    return (known.of_A - known.of_B).diagonal(dim1=-2, dim2=-1).sum(-1)
