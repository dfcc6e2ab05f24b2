"""The pairs of one layer of a checkpoint, in pieces small enough to be float64 beside the tensors they lie in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.pairs import PairFamily
from identcli.layouts.located import Located
from identcli.symmetry.pair import Pair, gather, scatter

# Bytes of float64 in one piece; a single kv group may take more. Small beside what torch itself takes (220 MB).
PIECE = 2 << 20


class Piece(NamedTuple):
    """Some kv groups of a layer: their numbers, their family, and their pairs in float64, (1, groups, D, …)."""

    groups: slice
    family: PairFamily
    pair: Pair


def views(pairs: Located, layer: int, get: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Each role of the layer as a view of its tensor: (kv groups, heads of a group, rows, E), a bias without the E.

    `get` is asked once for each tensor. Writing to a view writes to the tensor.
    """
    places = pairs.at(layer)
    tensors = {name: get(name) for name in pairs.names(layer)}
    found = {}
    for role, place in places.items():
        view = place.view(tensors[place.name])
        found[role] = view if place.together else view.unflatten(0, (pairs.family.groups, -1))
    return found


def parts(pairs: Located, roles: Mapping[str, Tensor]) -> list[slice]:
    """The layer's kv groups, so many at a time as fit into PIECE bytes of float64."""
    total = pairs.family.groups
    each = 8 * sum(view.numel() for view in roles.values()) // total
    step = max(1, PIECE // max(1, each))
    return [slice(first, min(first + step, total)) for first in range(0, total, step)]


def piece(pairs: Located, roles: Mapping[str, Tensor], groups: slice) -> Piece:
    """Some of the layer's kv groups as pairs in float64, copied."""
    family = replace(pairs.family, layers=1, groups=groups.stop - groups.start)
    return Piece(groups, family, _gathered(family, groups, roles))


def pieces(pairs: Located, roles: Mapping[str, Tensor]) -> Iterator[Piece]:
    """All pieces of a layer, one after the other."""
    return (piece(pairs, roles, groups) for groups in parts(pairs, roles))


def again(where: Piece, roles: Mapping[str, Tensor]) -> Pair:
    """The pairs of a piece as the tensors hold them now."""
    return _gathered(where.family, where.groups, roles)


def _gathered(family: PairFamily, groups: slice, roles: Mapping[str, Tensor]) -> Pair:
    return gather(
        family, {role: view[groups].to(torch.float64, copy=True).flatten(0, 1)[None] for role, view in roles.items()}
    )


def all_finite(pair: Pair) -> Tensor:
    """Which pairs (…) hold finite numbers only, biases included. A sum is finite only when all of its terms are."""
    sums = [part.sum((-2, -1)) for part in pair if part is not None]
    return torch.stack(sums).isfinite().all(0)


def put(where: Piece, pair: Pair, roles: Mapping[str, Tensor]) -> None:
    """Write a pair back into the views that the piece came from, rounded to their dtype."""
    for role, values in scatter(where.family, pair).items():
        view = roles[role][where.groups]
        view.copy_(values.reshape(view.shape))
