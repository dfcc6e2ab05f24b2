"""What gradient flow conserves along an orbit's directions (5.1; theory 15)."""

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.pair import Pair, plain_rows


def imbalance(pair: Pair) -> Tensor:
    """C = AAᵀ − BBᵀ, (…, D, D). Bias columns count only when they are inside A and B (see `augmented`)."""
    return pair.A @ pair.A.mT - pair.B @ pair.B.mT


def charge(group: Group, pair: Pair) -> Tensor:
    """The conserved numbers of the pair as a vector (…, n), n = rotary/2 + (D − rotary)².

    One number |u_j|² − |v_j|² for each rotated pair of rows (u of A, v of B), then the entries of C among the rows
    that no position rotates. For GL(D) that is C itself, flattened, so the vector's norm is ‖C‖_F = β. With rotary
    positions the rest of C is not conserved and does not appear.
    """
    parts = []
    if group.rotary:
        first, second = (list(rows) for rows in zip(*group.pairs, strict=True))
        rows = pair.A.square().sum(-1) - pair.B.square().sum(-1)
        parts.append(rows[..., first] + rows[..., second])
    if group.plain:
        plain = Pair(plain_rows(group, pair.A), plain_rows(group, pair.B))
        parts.append(imbalance(plain).flatten(-2))
    return torch.cat(parts, dim=-1)


def trace(pair: Pair) -> Tensor:
    """τ = tr C = ‖A‖² − ‖B‖², (…): the signed imbalance of the paper (5.3)."""
    return pair.A.square().sum((-2, -1)) - pair.B.square().sum((-2, -1))
