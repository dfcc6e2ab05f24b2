"""One process at a time: a lock on a folder that ends with its holder, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from identcli.architecture.errors import UserError


class InUse(UserError):
    """Another process holds the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder`/.lock while inside. InUse, at once, when another process holds it.

    The system takes the lock back when the process ends, so that a kill leaves none behind. On a network file system
    this is as good as its flock.
    """
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise InUse(f"{folder}: in use by another process, {file.read().strip() or 'unknown'}") from None
        file.truncate(0)
        file.write(f"pid {os.getpid()}")
        file.flush()
        yield
        file.truncate(0)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder now."""
    try:
        with (folder / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
