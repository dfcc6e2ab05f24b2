"""Files that are either the old ones or the new ones, whole, whenever the machine stops."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the names of unfinished files and folders begin; every reader of a run folder passes over them."""


def sync_file(path: Path) -> None:
    """Wait until the content of the file is on the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk (Windows can't and needn't)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary(path: Path) -> Path:
    """A fresh name beside `path` for building what will replace it."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files that kills have left right in the folder. For the process that holds it."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_file():
            path.unlink()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; at the end of the block it becomes `path`, all at once.

    When the block (or the disk) fails, the temporary file is removed, `path` stays as it was, and the error goes on.
    """
    draft = temporary(path)
    try:
        yield draft
        sync_file(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file by this content, atomically."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Replace the file by this text in UTF-8, line ends as given, atomically."""
    write_bytes(path, content.encode("utf-8"))
