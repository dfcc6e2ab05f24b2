"""Any UTF-8 file as a corpus, byte for byte."""

from pathlib import Path

from identcli.architecture.errors import UserError
from identcli.data.document import Document, decode


def text(path: str | Path) -> Document:
    """The file's bytes as they are. Raises UserError when it is missing, a folder, empty, unreadable or not UTF-8."""
    place = Path(path).expanduser()
    if not str(path).strip():
        raise UserError("data.path is empty: data=text needs data.path=FILE")
    if not place.exists():
        raise UserError(f"data.path={path}: no such file")
    if place.is_dir():
        raise UserError(f"data.path={path}: is a folder, a text file is needed")
    try:
        data = place.read_bytes()
    except OSError as error:
        raise UserError(f"data.path={path}: can't be read ({error.strerror})") from None
    if not data:
        raise UserError(f"data.path={path}: the file is empty")
    try:
        decode(data)
    except UserError as error:
        raise UserError(f"data.path={path}: {error}") from None
    return Document(data, {"source": "file", "path": str(place.resolve()), "notes": []})
