"""Characters ↔ token ids."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from identcli.architecture.errors import UserError


class Vocabulary:
    """Distinct characters; the id of a character is its place among them."""

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = list(characters)
        wrong = [c for c in self.characters if not isinstance(c, str) or len(c) != 1]
        if wrong:
            raise UserError(f"a vocabulary is made of single characters, not of {wrong[0]!r}")
        if not self.characters or len(set(self.characters)) < len(self.characters):
            raise UserError("a vocabulary needs at least one character, and none of them twice")

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """The characters that occur in `text`, sorted by code point."""
        return cls([chr(code) for code in np.unique(_codes(text))])

    def __len__(self) -> int:
        return len(self.characters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.characters == other.characters

    @cached_property
    def _ids(self) -> np.ndarray:
        """The id of each code point, -1 where it has none; the last place stands for all larger ones."""
        codes = [ord(character) for character in self.characters]
        ids = np.full(max(codes) + 2, -1, dtype=np.int64)
        ids[codes] = np.arange(len(codes))
        return ids

    def encode(self, text: str) -> Tensor:
        """Ids (N,), int64, of the N characters. Raises UserError that says which are unknown, and where."""
        codes = _codes(text)
        ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        if (unknown := np.flatnonzero(ids < 0)).size:
            raise UserError(_complaint(codes, unknown, len(self)))
        return torch.from_numpy(ids)

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """The text of a row of ids (N,)."""
        row = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if wrong := [i for i in row if not 0 <= i < len(self)]:
            raise UserError(f"token {wrong[0]} is outside the vocabulary of {len(self)} characters")
        return "".join([self.characters[i] for i in row])

    def to_list(self) -> list[str]:
        """What `Vocabulary` makes itself from again; fit for JSON."""
        return list(self.characters)


def _codes(text: str) -> np.ndarray:
    """The code points of a text. A prompt from the command line may hold lone surrogates: they pass through."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _complaint(codes: np.ndarray, unknown: np.ndarray, size: int, kinds: int = 5, places: int = 3) -> str:
    """One line about the places `unknown`: the first few characters with their code points and first places."""
    first_seen = list(dict.fromkeys(codes[unknown].tolist()))
    described = []
    for code in first_seen[:kinds]:
        at = unknown[codes[unknown] == code].tolist()
        more = f" and {len(at) - places} more" if len(at) > places else ""
        described.append(f"{chr(code)!r} (U+{code:04X}) at {', '.join(map(str, at[:places]))}{more}")
    if len(first_seen) > kinds:
        described.append(f"and {len(first_seen) - kinds} other characters")
    plural = "character" if len(unknown) == 1 else "characters"
    return (
        f"the text has {len(unknown)} {plural} outside the vocabulary of {size}: "
        + "; ".join(described)
        + " (places count from 0)"
    )
