"""Processes of this machine as Linux tells of them, while some of them end."""

import time
from pathlib import Path

from identcli.store import record


def children_of(pid: int | str) -> list[int]:
    """Those of all its threads. `self`: of this process."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in told(task / "children").split()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def once_it_trains(folder: Path, patience_s: float = 60) -> dict:
    """The status of a run, as soon as it has made a step."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if (folder / "status.json").exists() and (status := record.read_status(folder))["step"]:
            return status
        time.sleep(0.02)
    raise AssertionError(f"{folder} doesn't train")


def told(file: Path) -> bytes:
    """Nothing where the thread or the process has ended since it was listed."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
