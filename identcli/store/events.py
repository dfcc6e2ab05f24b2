"""events.jsonl: what happened between updates (a rebalancing, a checkpoint, a divergence), one JSON object a line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.store import atomic, strictjson


def append(folder: Path, event: dict[str, Any]) -> None:
    """Add one event with a single write, and wait until it is on the disk. NaN and ±inf become null.

    What a kill left of an unfinished line is removed first: an event counts once its line end is written.
    """
    line = (strictjson.to_text(event) + "\n").encode("utf-8")
    descriptor = os.open(_path(folder), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        whole = _whole_length(descriptor)
        os.ftruncate(descriptor, whole)
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, whole)
            raise OSError(f"{_path(folder)}: the event could not be written in one piece: is the disk full?")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[dict[str, Any]]:
    """All whole events in the order of writing; [] without a file. UserError names a line that is no JSON object."""
    try:
        content = _path(folder).read_bytes()
    except FileNotFoundError:
        return []
    lines = content.split(b"\n")[:-1]  # what follows the last line end is still being written, or never will be
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise UserError(f"{_path(folder)}, line {number}: can't be read as JSON: {error}") from None
        if not isinstance(event, dict):
            raise UserError(f"{_path(folder)}, line {number}: must be a JSON object, not {type(event).__name__}")
        events.append(event)
    return events


def keep(folder: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the events that a resumed run will write again: only those that `wanted` approves stay. Atomic."""
    if _path(folder).exists():
        kept = [strictjson.to_text(event) + "\n" for event in read(folder) if wanted(event)]
        atomic.write_text(_path(folder), "".join(kept))


def _path(folder: Path) -> Path:
    return folder / "events.jsonl"


def _whole_length(descriptor: int, block: int = 4096) -> int:
    """Bytes up to and including the last line end."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        os.lseek(descriptor, start, os.SEEK_SET)
        newline = os.read(descriptor, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
