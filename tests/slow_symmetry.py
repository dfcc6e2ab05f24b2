"""The groups found numerically, and projections as dense least squares: slow twins that use no closed form."""

from functools import cache
from itertools import product

import torch
from torch import Tensor

from cases import normal
from identcli.architecture.groups import Group
from identcli.symmetry.act import Move
from identcli.symmetry.pair import Pair
from slow_attention import rotation

# Null singular values are rounding, 1e-15 of the largest. The smallest that counts belongs to the slowest
# rotation of the tests: 0.05 rad a position between rows, or between a rotated row and one that is not.
NULL = 1e-10


@cache
def commutant(group: Group) -> Tensor:
    """Orthonormal matrices (n, D, D) that span {S : S R = R S}, R the rotations of positions 1 and 2.

    The null space of S ↦ (S R − R S) as a matrix on vec(S), by SVD.
    """
    eye = torch.eye(group.size, dtype=torch.float64)
    turns = [rotation(group.size, t, group.rotary, group.style) for t in (1, 2)]
    maps = torch.cat([torch.kron(eye, R.T.contiguous()) - torch.kron(R, eye) for R in turns])
    _, values, rows = torch.linalg.svd(maps)
    return rows[values <= NULL * max(1.0, float(values[0]))].reshape(-1, group.size, group.size)


def random_algebra(group: Group, *batch: int, seed: int = 0) -> Tensor:
    """Random matrices (…, D, D) of the commutant."""
    span = commutant(group)
    return torch.einsum("...k,kij->...ij", normal(*batch, len(span), seed=seed), span)


def random_element(group: Group, *batch: int, seed: int = 0) -> Tensor:
    """Random invertible matrices (…, D, D) of the commutant, singular values between 1/2 and 2.

    U f(s) Vᵀ of an S that commutes with rotations commutes as well, so the singular values may be bounded: no
    tolerance then needs to allow for a badly conditioned S.
    """
    U, s, Vt = torch.linalg.svd(random_algebra(group, *batch, seed=seed))
    return U * s.clamp(0.5, 2).unsqueeze(-2) @ Vt


def random_move(group: Group, pair: Pair, seed: int = 0) -> Move:
    """Another element for each pair of a batch, its inverse transpose by solving."""
    S = random_element(group, *pair.A.shape[:-2], seed=seed)
    return Move(S, torch.linalg.solve(S, torch.eye(group.size, dtype=S.dtype)).mT)


def flat(pair: Pair) -> Tensor:
    """All entries of one pair (no batch) as one vector."""
    return torch.cat([part.flatten() for part in pair if part is not None])


def null_directions(group: Group, pair: Pair) -> Tensor:
    """Columns that span all null directions of one pair: (X A, −Xᵀ B, X a, −Xᵀ b) and free key-bias rows.

    The softmax cancels what is the same for all keys: a key bias on a row that no position rotates.
    """
    X = commutant(group)
    moved = [X @ pair.A, -X.mT @ pair.B]
    moved += [] if pair.a is None else [X @ pair.a]
    moved += [] if pair.b is None else [-X.mT @ pair.b]
    directions = torch.cat([part.flatten(1) for part in moved], dim=1)
    if pair.b is not None:
        free = torch.zeros(group.plain, directions.shape[1], dtype=torch.float64)
        # The key bias comes last, and its unrotated rows are the last of it.
        free[:, free.shape[1] - group.plain :] = torch.eye(group.plain, dtype=torch.float64)
        directions = torch.cat([directions, free])
    return directions.T


def least_squares(directions: Tensor, update: Tensor) -> Tensor:
    """The point of the span of `directions` (n, k) that is nearest to `update` (n); they may be dependent."""
    U, s, _ = torch.linalg.svd(directions, full_matrices=False)
    U = U[:, s > NULL * s[0]]
    return U @ (U.T @ update)


def one_by_one(pair: Pair) -> list[tuple[tuple[int, ...], Pair]]:
    """(index, pair without batch) for each pair of a batch."""
    indices = product(*(range(n) for n in pair.A.shape[:-2]))
    return [(i, Pair(*(None if part is None else part[i] for part in pair))) for i in indices]


def last_of(pair: Pair) -> Pair:
    """The last pair of a batch, without batch: one is enough where a slow twin is very slow."""
    return one_by_one(pair)[-1][1]
