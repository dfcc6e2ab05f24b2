"""Finding attention layers in a checkpoint by the names of its tensors, whatever stands before them."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from identcli.layouts.fused import FUSED
from identcli.layouts.kind import Kind
from identcli.layouts.separate import SEPARATE

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*SEPARATE, *FUSED)}
_NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")


@dataclass(frozen=True)
class Site:
    """One stack of attention layers. at: how the names of its tensors begin, with "{layer}" for the number.

    cross: it reads an encoder. layers: the numbers that occur, ascending; (0,) where the names hold none.
    """

    at: str
    layers: tuple[int, ...]
    cross: bool = False

    def of(self, layer: int) -> str:
        """How the names of one layer begin."""
        return self.at.replace("{layer}", str(layer))


def sites(kind: Kind, names: Collection[str]) -> list[Site]:
    """The stacks whose names are those of `kind`, in the order of the names."""
    anchor, output = kind.weight("Q"), kind.weight("O")
    found: dict[tuple[str, bool], list[int]] = {}
    for name in names:
        for number, inside in enumerate(kind.inside):
            before = name.removesuffix(inside + anchor)
            if before != name and (not before or before.endswith(".")):
                if before + inside + output in names:
                    at, layer = numbered(before)
                    found.setdefault((at + inside, number == 1), []).append(layer)
                break
    return [Site(at, tuple(sorted(layers)), cross) for (at, cross), layers in found.items()]


def numbered(before: str) -> tuple[str, int]:
    """The last number in a beginning of names replaced by "{layer}", and that number; 0 where there is none."""
    numbers = list(_NUMBER.finditer(before))
    if not numbers:
        return before, 0
    last = numbers[-1]
    return before[: last.start()] + "{layer}" + before[last.end() :], int(last[0])


def kinds_by_name(names: Collection[str], among: Iterable[Kind] = KINDS.values()) -> list[Kind]:
    """The kinds whose names occur, in the order of the table. Several kinds may share their names."""
    return [kind for kind in among if sites(kind, names)]
