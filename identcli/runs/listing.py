"""What the runs at a path are and how they fare: a row for each, also for the points of a sweep that never started."""

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.config.label import case_of, label
from identcli.store import record
from identcli.store.folder import is_run, is_sweep, runs_in
from identcli.store.lock import is_locked

NEVER_STARTED = "never started"
LOST = "lost"


@dataclass(frozen=True)
class Row:
    """One run. `state` is that of its status, or `lost` (its process is gone), or `never started`."""

    folder: Path
    overrides: list[str]
    case: str | None
    label: str | None
    seed: int | None
    lr: float | None
    state: str
    step: int | None
    steps: int | None
    train_loss: float | None
    val_loss: float | None
    elapsed_s: float | None
    updated: str | None
    error: str | None
    stop_at: int | None = None

    @property
    def done(self) -> bool:
        """Whether it did what was asked: all its steps, or those up to `stop_at`."""
        return self.state == "finished" or (self.state == "interrupted" and self.step == self.stop_at)

    @property
    def age_s(self) -> float | None:
        """Seconds since the run last wrote its status."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.updated)).total_seconds() if self.updated else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"folder": str(self.folder)}


def rows(path: Path) -> list[Row]:
    """A row for the run at `path`, for each point of the sweep, or for all runs below. NotARun when there is none."""
    if is_run(path) or not is_sweep(path):
        return [row(folder) for folder in runs_in(path)]
    points = record.read_sweep(path)["points"]
    if not points:
        return [row(folder) for folder in sorted(path.iterdir()) if is_run(folder)]
    return [row(path / point["folder"], point["overrides"], point.get("config")) for point in points]


def row(folder: Path, overrides: list[str] | None = None, planned: Mapping[str, Any] | None = None) -> Row:
    """The row of one run folder, which may not exist yet; `planned` is its config then."""
    status = record.read_status(folder) if is_run(folder) else {}
    facts: dict[str, Any] = dict.fromkeys(("case", "label", "seed", "lr", "stop_at"))
    with contextlib.suppress(UserError, KeyError, TypeError):
        config = record.read_config(folder) if status or planned is None else planned
        facts |= {"case": case_of(config), "label": label(config), "seed": config["seed"], "lr": config["lr"]}
        facts["stop_at"] = config.get("stop_at")
    keys = ("step", "steps", "train_loss", "val_loss", "elapsed_s", "updated", "error")
    return Row(
        folder=folder,
        overrides=list(overrides or []),
        state=_state_in(folder, status) if status else NEVER_STARTED,
        **facts,
        **{key: status.get(key) for key in keys},
    )


def _state_in(folder: Path, status: Mapping[str, Any]) -> str:
    """As `state_of`, but the lock of the run knows better than a process number, which is used again one day."""
    if status["state"] == "running" and status.get("host") == socket.gethostname() and (folder / ".lock").exists():
        return "running" if is_locked(folder) else LOST
    return state_of(status)


def state_of(status: Mapping[str, Any]) -> str:
    """The state that a status tells; `lost` when it says running and its process on this host is gone."""
    state = str(status["state"])
    if state == "running" and status.get("host") == socket.gethostname() and not is_alive(int(status["pid"])):
        return LOST
    return state


def is_alive(pid: int) -> bool:
    """Whether a process of this host has this id and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
