"""A document: the bytes that a corpus is made of, before they are tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from identcli.architecture.errors import UserError


@dataclass(frozen=True)
class Document:
    """UTF-8 bytes, and what their source alone knows. `characters`: the vocabulary, None for those that occur."""

    data: bytes
    facts: Mapping[str, Any] = field(default_factory=dict)
    characters: Sequence[str] | None = None


def decode(data: bytes) -> str:
    """The text of UTF-8 bytes, whatever the locale."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"invalid UTF-8 at byte {error.start} (0x{data[error.start]:02x}, {error.reason}): text must be UTF-8"
        ) from None


def line_endings(data: bytes) -> dict[str, int]:
    r"""How often lines end with \r\n, with \r alone, with \n alone."""
    crlf = data.count(b"\r\n")
    return {"crlf": crlf, "cr": data.count(b"\r") - crlf, "lf": data.count(b"\n") - crlf}
