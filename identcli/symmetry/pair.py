"""A batch of pairs: the matrices that meet only in a product, with the biases that move with them.

Axes: … any batch (layers, kv groups); D rows that the group mixes; α, β columns of A and B; m, n bias columns.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.architecture.pairs import ROLES, PairFamily


class Pair(NamedTuple):
    """A (…, D, α), B (…, D, β), and optional bias columns a (…, D, m) of A and b (…, D, n) of B.

    qk: A = the query matrices that share a key, side by side; B = W_K; a = their b_Q; b = b_K.
    ov: A = W_V; B = the W_Oᵀ that share the value, side by side; a = b_V; b is None (b_O does not move).
    The same four places hold weights, updates, gradients or moments.
    """

    A: Tensor
    B: Tensor
    a: Tensor | None = None
    b: Tensor | None = None

    def layers(self, some: slice) -> "Pair":
        """The pairs of some layers, along the first axis; no copy."""
        everything = some.start == 0 and some.stop >= self.A.shape[0]
        return self if everything else self.each(lambda part: part[some])

    def double(self) -> "Pair":
        """In float64, in which everything is computed."""
        return self.each(Tensor.double)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Pair":
        """The same done to every place."""
        a, b = (None if part is None else change(part) for part in (self.a, self.b))
        return Pair(change(self.A), change(self.B), a, b)


def gather(family: PairFamily, roles: Mapping[str, Tensor]) -> Pair:
    """The pairs of `family` from its role tensors: weights (L, heads, D, E), biases (L, heads, D).

    Query head h shares the key of kv group h // m, as every published grouped model numbers them. A missing bias role
    gives None.
    """
    name_A, name_B, name_a, name_b = ROLES[family.circuit]
    a, b = roles.get(name_a), roles.get(name_b) if name_b else None
    return Pair(
        _side_by_side(family, roles[name_A]),
        _side_by_side(family, roles[name_B]),
        None if a is None else _side_by_side(family, a.unsqueeze(-1)),
        None if b is None else _side_by_side(family, b.unsqueeze(-1)),
    )


def scatter(family: PairFamily, pair: Pair) -> dict[str, Tensor]:
    """The inverse of `gather`: role tensors (L, heads, D, E) and (L, heads, D)."""
    name_A, name_B, name_a, name_b = ROLES[family.circuit]
    # Which side holds several heads; the widths of the two sides may differ (a latent key has one of its own).
    of_A, of_B = (family.heads_per_group, 1) if family.circuit == "qk" else (1, family.heads_per_group)
    roles = {name_A: _apart(pair.A, of_A), name_B: _apart(pair.B, of_B)}
    if pair.a is not None:
        roles[name_a] = _apart(pair.a, of_A).squeeze(-1)
    if pair.b is not None and name_b is not None:
        roles[name_b] = _apart(pair.b, of_B).squeeze(-1)
    return roles


def _side_by_side(family: PairFamily, heads: Tensor) -> Tensor:
    """(L, G·m, D, E) -> (L, G, D, m·E)."""
    layers, count, rows, width = heads.shape
    together = count // family.groups
    if together == 1:
        return heads
    grouped = heads.reshape(layers, family.groups, together, rows, width)
    return grouped.transpose(2, 3).reshape(layers, family.groups, rows, together * width)


def _apart(joined: Tensor, heads: int) -> Tensor:
    """(L, G, D, m·E) -> (L, G·m, D, E)."""
    layers, groups, rows, _ = joined.shape
    return joined.reshape(layers, groups, rows, heads, -1).transpose(2, 3).reshape(layers, groups * heads, rows, -1)


def augmented(group: Group, pair: Pair) -> Pair:
    """The pair with its bias columns inside A and B: the exact statement when biases are trained (theory 2 and 13).

    A becomes [A a]. B becomes [B b] on the rotated rows only: on rows that no position rotates the softmax cancels the
    key bias, so there b is a null direction of its own (see `null_energy`) and takes no part in the pair.
    """
    A = pair.A if pair.a is None else torch.cat([pair.A, pair.a], dim=-1)
    B = pair.B
    if pair.b is not None and group.rotary:
        rotated = pair.b.clone()
        rotated[..., group.rotary :, :] = 0
        B = torch.cat([B, rotated], dim=-1)
    return Pair(A, B)


def biases_alone(pair: Pair) -> Pair:
    """The pair without its weights: matrices of no columns, and the bias columns."""
    return Pair(pair.A[..., :0], pair.B[..., :0], pair.a, pair.b)


def null_energy(group: Group, update: Pair) -> Tensor:
    """Squared norm (…) of the part of a key-bias update that no output ever sees: its unrotated rows (4.7.1)."""
    if update.b is None:
        return update.A.new_zeros(update.A.shape[:-2])
    return plain_rows(group, update.b).square().sum((-2, -1))


def squared_norm(pair: Pair) -> Tensor:
    """Sum (…) of the squares of all entries, biases included where they are present."""
    return torch.stack([part.square().sum((-2, -1)) for part in pair if part is not None]).sum(0)


def difference(after: Pair, before: Pair) -> Pair:
    """after − before, place by place."""
    a = None if after.a is None or before.a is None else after.a - before.a
    b = None if after.b is None or before.b is None else after.b - before.b
    return Pair(after.A - before.A, after.B - before.B, a, b)


def outer(columns: Tensor, others: Tensor) -> Tensor:
    """The sum of the outer products of some columns (…, D, m) with as many others, (…, D, D)."""
    return columns * others.mT if columns.shape[-1] == 1 else columns @ others.mT  # half the time for small D


def rotated_rows(group: Group, matrix: Tensor) -> Tensor:
    """Rows of each rotated pair as one complex row: (…, rotary/2, columns) = M[a] + i·M[b]."""
    first, second = zip(*group.pairs, strict=True)
    return torch.complex(matrix[..., list(first), :], matrix[..., list(second), :])


def plain_rows(group: Group, matrix: Tensor) -> Tensor:
    """The rows (…, D − rotary, columns) that no position rotates."""
    return matrix[..., group.rotary :, :] if group.rotary else matrix
