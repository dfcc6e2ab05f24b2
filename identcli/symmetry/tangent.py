"""Directions in which the model does not change to first order (4.4)."""

from torch import Tensor

from identcli.symmetry.pair import Pair


def tangent(X: Tensor, pair: Pair) -> Pair:
    """(X A, −Xᵀ B, X a, −Xᵀ b) for X (…, D, D) in the group's algebra: d/dt of the move exp(tX) at t = 0.

    BᵀA keeps its value to first order: Bᵀ(XA) + (−XᵀB)ᵀA = 0. X need not be invertible.
    """
    return Pair(
        X @ pair.A,
        -X.mT @ pair.B,
        None if pair.a is None else X @ pair.a,
        None if pair.b is None else -X.mT @ pair.b,
    )
