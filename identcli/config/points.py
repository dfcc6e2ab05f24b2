"""From swept values to the points of a sweep.

The points are the product of the values swept on the command line and by the experiment (`hydra.sweeper.params`), once
for each of the experiment's exact points (`hydra.sweeper.points`, lists of overrides). What is on the command line
wins: a key given there, with one value or several, replaces that key in `params` and in every exact point. Points that
ask for the same results (equal resolved configs, name and device apart) run once, in the place of the first.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from identcli.config.schema import RunConfig

_FRAME = "'\"[](){} "  # what stands around a value in Hydra's grammar


@dataclass(frozen=True)
class Point:
    """One run of a sweep: the name of its folder, the overrides that make it, its resolved config."""

    folder: str
    overrides: list[str]
    config: RunConfig
    hash: str


def combine(swept: dict[str, list[str]], exact: Sequence[Sequence[str]], typed: Iterable[str]) -> list[list[str]]:
    """The overrides of every point. `swept`: key -> its values as key=value; `typed`: the keys on the command line."""
    taken = set(typed)
    kept = [[word for word in point if key_of(word) not in taken] for point in exact] or [[]]
    product = [list(values) for values in itertools.product(*swept.values())]
    return [[*point, *values] for point in kept for values in product]


def key_of(word: str) -> str:
    """`lr` of `++lr=0.1`."""
    return word.partition("=")[0].lstrip("+")


def folder_name(overrides: Sequence[str]) -> str:
    """`case-sgd_lr-0.5` for `case=sgd lr=0.5`: no character that a shell, a file system or Hydra minds."""
    words = []
    for word in overrides:
        key, _, value = word.lstrip("+").partition("=")
        words.append(f"{key}-{value.strip(_FRAME)}" if value else key)
    words = [re.sub(r"[^\w.+\-]+", "-", word).strip("-.") for word in words]
    return "_".join(words) or "base"


def distinct(names: Sequence[str], hashes: Sequence[str]) -> list[str]:
    """The names, with the hash in the place of what is too long, and behind what another point is called too."""
    short = [name if len(name) <= 100 else f"{name[:80]}_{tail}" for name, tail in zip(names, hashes, strict=True)]
    lower = [name.lower() for name in short]  # some file systems take A and a for the same
    return [
        name if lower.count(name.lower()) == 1 else f"{name}_{tail}" for name, tail in zip(short, hashes, strict=True)
    ]
