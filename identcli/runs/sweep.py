"""Many runs: their folder and sweep.json first, then Hydra's launcher, then how each of them fared."""

import contextlib
import logging
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.config import launch
from identcli.config.preflight import Many
from identcli.config.schema import RunConfig
from identcli.runs.listing import LOST, Row, is_alive, rows
from identcli.runs.place import place
from identcli.store import record
from identcli.store.folder import is_run

logger = logging.getLogger("ident")


@dataclass(frozen=True)
class Report:
    """How a sweep ended. `error`: what ended the whole of it early, if anything did."""

    folder: Path
    rows: list[Row]
    interrupted: bool
    error: str | None

    @property
    def bad(self) -> list[Row]:
        return [row for row in self.rows if row.state != "finished"]

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else int(bool(self.bad) or self.error is not None or not self.rows)


def prepare(plan: Many) -> None:
    """Find what is wrong with the machine or the data before any folder is made; each of them is looked at once."""
    from identcli.runs.train import prepare as prepare_run

    different = {(config.device, config.data, config.model.block_size): config for config in configs(plan)}
    for config in different.values():
        prepare_run(config)


def configs(plan: Many) -> list[RunConfig]:
    return [point.config for point in plan.points]


def claim(plan: Many, command: Sequence[str]) -> Path:
    """Take the sweep's folder and write in it what is going to run."""
    folder = place(plan.folder, plan.name, "sweep")
    points = [{"folder": point.folder, "overrides": point.overrides, "hash": point.hash} for point in plan.points]
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    record.write_sweep(folder, {"command": list(command), "started": started, "points": points})
    return folder


def run(plan: Many, folder: Path, user_folder: Path | None) -> Report:
    """Launch every point and go on past those that fail. Nothing is raised: the report tells it all."""
    interrupted, error = False, None
    try:
        with _interrupt_on_sigterm():
            launch.sweep(point, plan.words, folder, user_folder)
    except KeyboardInterrupt:
        interrupted = True
        _settle(folder)
    except Exception as failure:
        # A launcher that breaks down (a worker killed by the system, say): what it had started is lost.
        error = f"{type(failure).__name__}: {failure}".strip().splitlines()[0]
        (folder / "sweep.log").write_text(traceback.format_exc(), encoding="utf-8")
    over = [replace(row, state=LOST) if row.state == "running" else row for row in rows(folder)]
    return Report(folder, over, interrupted, error)


def point(composed: Any) -> float:
    """One run of a sweep, in whatever process the launcher gives it: the last validation loss, NaN if it failed.

    A failure is written down and ends this run alone. A sweeper that searches is told of it by the exception.
    """
    from identcli.runs.train import run as train

    config, folder = launch.launched(composed)
    sweep = record.read_sweep(folder.parent)
    try:
        outcome = train(config, folder, sweep["command"], live=False)
    except Exception as failure:
        _write_failure(config, folder, failure)
        if not sweep["points"]:
            raise
        return math.nan
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    loss = record.read_status(folder).get("val_loss")
    return math.nan if outcome.state != "finished" or loss is None else float(loss)


def _write_failure(config: RunConfig, folder: Path, failure: Exception) -> None:
    reason = str(failure) if isinstance(failure, UserError) else f"{type(failure).__name__}: {failure}".strip()
    record.write_config(folder, config.to_dict())
    with (folder / "run.log").open("a", encoding="utf-8") as log:
        log.write("".join(traceback.format_exception(failure)))
    record.write_status(
        folder,
        state="failed",
        error=reason.splitlines()[0],
        steps=config.steps,
        config_hash=record.config_hash(config.to_dict()),
    )


def _settle(folder: Path, patience_s: float = 5.0) -> None:
    """After Ctrl-C: wait for the processes of the runs to end, then mark what they could not mark themselves."""
    deadline = time.monotonic() + patience_s
    for entry in folder.iterdir():
        if not is_run(entry):
            continue
        status = record.read_status(entry)
        while _runs_elsewhere(status) and time.monotonic() < deadline:
            time.sleep(0.05)
            status = record.read_status(entry)
        if status["state"] == "running":
            record.write_status(entry, state="interrupted", error=f"interrupted after {status.get('step')} steps")


def _runs_elsewhere(status: Mapping[str, Any]) -> bool:
    pid = int(status["pid"])
    return status["state"] == "running" and pid != os.getpid() and is_alive(pid)


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """A polite kill ends the sweep as Ctrl-C does. Only a main thread can take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
