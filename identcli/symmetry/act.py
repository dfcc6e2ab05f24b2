"""Moving a pair along its orbit: (A, B) -> (S A, S⁻ᵀ B), the same model for every S of the group (4.2, 4.5, 4.8.2)."""

from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry.pair import Pair


class Move(NamedTuple):
    """An element S (…, D, D) of the group together with its inverse transpose S⁻ᵀ.

    Both are kept since the balanced point gives both in closed form, more exactly than an inverse would.
    """

    S: Tensor
    S_inverse_T: Tensor


def move(S: Tensor) -> Move:
    """The move of an invertible S (…, D, D)."""
    return Move(S, torch.linalg.inv(S).mT)


def act(step: Move, pair: Pair) -> Pair:
    """(S A, S⁻ᵀ B, S a, S⁻ᵀ b). Biases move with their weights: leaving b_Q behind changes the model (4.6)."""
    S, T = step
    return Pair(
        S @ pair.A,
        T @ pair.B,
        None if pair.a is None else S @ pair.a,
        None if pair.b is None else T @ pair.b,
    )


def basis(group: Group, dtype: torch.dtype = torch.float64) -> Tensor:
    """A basis (dimension, D, D) of the matrices that commute with the rotations: the group's Lie algebra.

    Its span is closed under products, so every invertible combination is an element of the group. Rotated pair (a, b)
    gives the scaling E_aa + E_bb and the rotation E_ba − E_ab; the unrotated rows give every E_ij among them.
    """
    D = group.size
    elements = torch.zeros(group.dimension, D, D, dtype=dtype)
    k = 0
    for a, b in group.pairs:
        elements[k, a, a] = elements[k, b, b] = 1
        elements[k + 1, b, a], elements[k + 1, a, b] = 1, -1
        k += 2
    for i in range(group.rotary, D):
        for j in range(group.rotary, D):
            elements[k, i, j] = 1
            k += 1
    return elements
