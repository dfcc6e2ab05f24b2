"""A file known by its SHA-256: from the cache, or from the first of its sources that answers with those bytes.

Nothing is substituted: bytes with another SHA-256 are refused whoever sent them, the cache included.
"""

import hashlib
import http.client
import logging
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from identcli.architecture.errors import UserError

OFFLINE = "IDENT_OFFLINE"
CONNECT_S = 10.0
DOWNLOAD_S = 60.0

log = logging.getLogger(__name__)


class NoAnswer(Exception):
    """Why one source gave no file, in a few words."""


@dataclass(frozen=True)
class KnownFile:
    """What is wanted: a name in the cache, the number of bytes, and the SHA-256 that decides."""

    name: str
    size: int
    sha256: str

    def check(self, data: bytes) -> bytes:
        """`data` itself. Raises NoAnswer when it is anything else than this file."""
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise NoAnswer(
                f"wrong bytes: {len(data)} with SHA-256 {found[:12]}…, not {self.size} with {self.sha256[:12]}…"
            )
        return data


@dataclass(frozen=True)
class Source:
    """Somewhere to get the file. `read` returns its bytes or raises NoAnswer or OSError."""

    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Fetched:
    """The file, where it came from, and what went wrong on the way (one line each)."""

    data: bytes
    source: str
    path: Path
    notes: list[str]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/ident; ~/.cache/ident when the variable is unset or, against its specification, relative."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "ident"
    try:
        return Path.home() / ".cache" / "ident"
    except RuntimeError:
        raise UserError("there is no home folder for the cache: set XDG_CACHE_HOME to a folder") from None


def offline() -> bool:
    """IDENT_OFFLINE, anything but empty or 0: nothing but the cache is asked."""
    return os.environ.get(OFFLINE, "") not in ("", "0")


def fetch(file: KnownFile, sources: Sequence[Source]) -> Fetched:
    """The cached file, else the first source's that is right, which is then put in the cache.

    A cached file with other bytes is moved aside (`….rotten`). A cache that can't be written is noted, not an error.
    Raises NoAnswer with a reason for each source.
    """
    path = cache_folder() / file.name
    notes: list[str] = []
    try:
        return Fetched(file.check(path.read_bytes()), "cache", path, notes)
    except FileNotFoundError:
        reasons = [f"cache {path}: not there"]
    except OSError as error:
        reasons = [f"cache {path}: {error.strerror}"]
    except NoAnswer as reason:
        reasons = [f"cache {path}: {reason}, {_move_aside(path)}"]
        _note(notes, reasons[0])
    for source in sources:
        try:
            if offline():
                raise NoAnswer(f"not asked, {OFFLINE} is set")
            data = file.check(source.read())
        except (NoAnswer, OSError) as reason:
            reasons.append(f"{source.name}: {reason}")
            continue
        try:
            write_atomically(path, data)
        except OSError as error:
            _note(notes, f"cache {path}: can't be written ({error.strerror}), the file will be fetched again")
        return Fetched(data, source.name, path, notes)
    raise NoAnswer("; ".join(reasons))


def url_source(url: str, size: int) -> Source:
    """A download over HTTP that gives up after 10 s of silence, after a minute, or past `size` bytes."""

    def read() -> bytes:
        deadline = time.monotonic() + DOWNLOAD_S
        data = bytearray()
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_S) as answer:
                while chunk := answer.read(1 << 16):
                    data += chunk
                    if len(data) > size:
                        raise NoAnswer(f"wrong bytes: more than {size}")
                    if time.monotonic() > deadline:
                        raise NoAnswer(f"{len(data)} of {size} bytes after {DOWNLOAD_S:.0f} s")
        except urllib.error.HTTPError as error:
            raise NoAnswer(f"HTTP {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise NoAnswer(str(error.reason)) from None
        except http.client.HTTPException as error:
            raise NoAnswer(f"broken answer ({type(error).__name__})") from None
        return bytes(data)

    return Source(url, read)


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or none of it, also when the process or the machine dies on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _move_aside(path: Path) -> str:
    aside = path.with_name(path.name + ".rotten")
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"and it can't be moved aside ({error.strerror})"
    return f"moved aside to {aside.name}"


def _note(notes: list[str], line: str) -> None:
    notes.append(line)
    log.warning("%s", line)
