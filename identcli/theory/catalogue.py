"""All lemmas in the order of the paper, and how a user names some of them."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from identcli.architecture.errors import UserError
from identcli.theory import biases, directions, extensions, flow, heads, products, projection, rebalancing
from identcli.theory.claim import Claim, Lemma, Outcome
from identcli.theory.trial import Size

_FILES = (products, directions, heads, biases, extensions, flow, projection, rebalancing)


C = TypeVar("C", bound=Claim)


def section_order(section: str) -> tuple[int, ...]:
    """4.10 comes after 4.9."""
    return tuple(int(number) for number in section.split("."))


def lemmas() -> tuple[Lemma, ...]:
    """Every lemma, by section, within one in the order of its file."""
    found = [value for file in _FILES for value in vars(file).values() if isinstance(value, Lemma)]
    return tuple(sorted(found, key=lambda one: section_order(one.section)))


def select(claims: Sequence[C], names: Iterable[str]) -> list[C]:
    """The claims of the named sections (4.7 means 4.7.1 and 4.7.2 too) and ids; all of them without names.

    UserError for a name that is neither.
    """
    wanted, known = list(names), [claim.id for claim in claims]
    sections = {claim.section for claim in claims}
    for name in wanted:
        if name not in known and not any(within(section, name) for section in sections):
            near = get_close_matches(name, [*known, *sections], n=1, cutoff=0.4)
            hint = f". Did you mean {near[0]}?" if near else "; `ident verify --list` names them all"
            raise UserError(f"{name}: no such section or claim{hint}")
    if not wanted:
        return list(claims)
    return [claim for claim in claims if any(claim.id == name or within(claim.section, name) for name in wanted)]


def within(section: str, outer: str) -> bool:
    """Whether a section is `outer` or inside it."""
    return section == outer or section.startswith(outer + ".")


def verify_lemmas(size: Size, seed: int = 0, names: Iterable[str] = ()) -> list[Outcome]:
    """Try the named lemmas, or all, at one size."""
    return [one.run(size, seed) for one in select(lemmas(), names)]
