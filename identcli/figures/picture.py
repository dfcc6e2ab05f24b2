"""A drawn figure with what is to be said about it, and its way into files: the same data always give the same bytes."""

import io
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from identcli.architecture.errors import UserError
from identcli.store import atomic

# Dates and versions would make every file different from the last.
_METADATA = {
    "png": {"Software": None},
    "pdf": {"Creator": "ident", "Producer": None, "CreationDate": None, "ModDate": None},
}


class Unsupported(UserError):
    """The stored data don't hold what a figure needs; the text says which run, what is missing, and the remedy."""


@dataclass(frozen=True)
class Picture:
    """A figure, and one line of text for each thing that a reader of it should know."""

    figure: Figure
    notes: list[str] = field(default_factory=list)


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write out/name.png and out/name.pdf, each whole or not at all. UserError when the folder can't be written."""
    files = []
    for kind, metadata in _METADATA.items():
        page = io.BytesIO()
        figure.savefig(page, format=kind, metadata=metadata)
        path = out / f"{name}.{kind}"
        try:
            out.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(path, page.getvalue())
        except OSError as error:
            raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
        files.append(path)
    return files
