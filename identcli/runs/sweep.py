"""Many runs: their folder and sweep.json first, then Hydra's launcher, then how each of them fared."""

import contextlib
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from identcli.architecture.errors import UserError
from identcli.config import launch
from identcli.config.errors import ConfigErrors
from identcli.config.preflight import Many, again
from identcli.config.schema import RunConfig, parse
from identcli.runs import stop
from identcli.runs.apart import apart
from identcli.runs.listing import LOST, NEVER_STARTED, Row, rows
from identcli.runs.place import place
from identcli.runs.point import FINAL, INTERRUPTED, launches_here, point
from identcli.store import record
from identcli.store.folder import NotARun, is_run, is_sweep, no_links_out
from identcli.store.lock import is_locked, locked

SECONDS_TO_SETTLE = 10.0


@dataclass(frozen=True)
class Report:
    """How a sweep ended. `error`: what ended the whole of it early, if anything did."""

    folder: Path
    rows: list[Row]
    interrupted: bool
    error: str | None

    @property
    def bad(self) -> list[Row]:
        """What didn't do what was asked. To be stopped by `stop_at` was asked."""
        return [row for row in self.rows if not row.done]

    @property
    def resumable(self) -> bool:
        """Whether resuming the sweep would do anything."""
        return any(row.state not in FINAL for row in self.rows) and bool(record.read_sweep(self.folder)["points"])

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else int(bool(self.bad) or self.error is not None or not self.rows)


def prepare(configs: Sequence[RunConfig]) -> None:
    """Find what is wrong with the machine or the data before any folder is made; each of them is looked at once.

    In a process of its own: the launching process must not touch a device, for its children couldn't use it then.
    ConfigErrors with a line for each thing that is wrong.
    """
    different = {
        (one.device, one.data, one.model.block_size, one.batch_size, one.loggers, one.cuda_graph): one
        for one in configs
    }

    import identcli.runs.train  # noqa: F401  # the child begins with it

    if different and (wrong := apart(lambda: _wrong_with(list(different.values())))):
        raise ConfigErrors(wrong)


def _wrong_with(configs: Sequence[RunConfig]) -> list[str]:
    from identcli.runs import train

    wrong: list[str] = []
    for config in configs:
        try:
            train.prepare(config)
        except UserError as error:
            wrong += getattr(error, "messages", None) or [str(error)]
    return wrong


def configs(plan: Many) -> list[RunConfig]:
    return [point.config for point in plan.points]


def claim(plan: Many, command: Sequence[str], words: Sequence[str], user_folder: Path | None, fail_fast: bool) -> Path:
    """Take the sweep's folder and write in it what is going to run: all that a resume needs."""
    folder = place(plan.folder, plan.name, "sweep")
    listed = [
        {"folder": each.folder, "overrides": each.overrides, "hash": each.hash, "config": each.config.to_dict()}
        for each in plan.points
    ]
    record.write_sweep(
        folder,
        {
            "command": list(command),
            "words": list(words),
            "config_dir": None if user_folder is None else str(user_folder.absolute()),
            "fail_fast": fail_fast,
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "points": listed,
        },
    )
    return folder


def run(plan: Many, folder: Path, user_folder: Path | None) -> Report:
    """Launch every point and go on past those that fail. Nothing is raised: the report tells it all."""
    with locked(folder):
        return _report(folder, *_launched(folder, plan.words, user_folder))


def resume(folder: Path, words: Sequence[str], fail_fast: bool) -> Report:
    """Go on with a sweep: points that finished are left alone, by identity and not by number; all others run.

    They begin at their newest checkpoint where they have one. UserError: no sweep there, another process at it, words
    that are not about launching, nothing listed to resume, or a machine that lacks what the points need.
    """
    if not is_sweep(folder):
        raise NotARun(f"{folder}: {'one run: ident train --resume' if is_run(folder) else 'no sweep'}")
    no_links_out(folder)
    with locked(folder):
        sweep = record.read_sweep(folder)
        if not sweep["points"]:
            raise UserError(f"{folder}: its points were chosen by a search, which can't be resumed")
        user_folder = Path(sweep["config_dir"]) if sweep.get("config_dir") else None
        given = again(sweep["words"], words, user_folder)
        record.write_sweep(folder, sweep | {"fail_fast": fail_fast})
        left = _left(folder)
        wanted = [parse(each["config"]) for each in sweep["points"] if each["folder"] in left]
        if wanted:
            prepare(wanted)
        return _report(folder, *_launched(folder, given, user_folder))


def _report(folder: Path, interrupted: bool, error: str | None) -> Report:
    """Rows with a reason for each that is not done."""
    why = stop.reason_of(folder) or error
    found = []
    for row in rows(folder):
        if row.state == "running" and not is_locked(row.folder):
            row = replace(row, state=LOST)
        if row.state in (LOST, NEVER_STARTED) and row.error is None:
            row = replace(row, error="its process is gone" if row.state == LOST else why)
        found.append(row)
    changed = {each["folder"] for each in record.read_sweep(folder)["points"] if _is_another(folder, each)}
    words = "its settings are no longer those of the sweep"
    found = [replace(row, state="changed", error=words) if row.folder.name in changed else row for row in found]
    return Report(folder, found, interrupted, error)


def _left(folder: Path) -> list[str]:
    """The folders of the points that have not ended yet, in their order, less those that another process is at."""
    left = []
    for each in record.read_sweep(folder)["points"]:
        entry = folder / each["folder"]
        over = is_run(entry) and (record.read_status(entry)["state"] in FINAL or is_locked(entry))
        if not over and not _is_another(folder, each):
            left.append(each["folder"])
    return left


def _is_another(folder: Path, listed: Mapping[str, Any]) -> bool:
    """Whether the run at a point's place is not the one that the sweep asked for."""
    entry = folder / listed["folder"]
    return (entry / "config.yaml").exists() and record.config_hash(record.read_config(entry)) != listed["hash"]


def _launched(folder: Path, words: list[str], user_folder: Path | None) -> tuple[bool, str | None]:
    """Launch what is left; whether somebody asked to stop, and what broke the launcher in the end, if anything did."""
    stop.forget(folder)
    launches_here()
    asked: list[int] = []
    try:
        with _stopped_by_signals(folder, asked):
            error = _launch(folder, words, user_folder, asked)
    except KeyboardInterrupt:
        asked.append(signal.SIGINT)
        error = None
    if asked:
        stop.ask(folder, INTERRUPTED)
        _settle(folder)
        error = None  # a launcher whose workers heard a Ctrl-C too may break down over it
    return bool(asked), error


def _launch(folder: Path, words: list[str], user_folder: Path | None, asked: Sequence[int]) -> str | None:
    """Launch what is left; what broke the launcher, if it got nowhere or nobody wants it to go on.

    A launcher breaks down when the system kills one of its workers: then it ends the others too. Points that had not
    begun are launched again, and those that were cut off, from their newest checkpoint, each alone: the one that is at
    fault then takes no other with it.
    """
    if not record.read_sweep(folder)["points"]:
        return _try(folder, words, user_folder, None)
    batches = [_left(folder)]
    while batches:
        batch = batches.pop(0)
        before = {name: _status(folder / name) for name in batch}
        error = _try(folder, words, user_folder, batch) if batch else None
        if error is None:
            continue
        _wait_until_free([folder / name for name in batch], math.inf)  # some launchers let the others go on
        touched = [name for name in batch if _status(folder / name) != before[name]]
        if not touched or asked or stop.reason_of(folder) is not None:
            return error
        print(f"the launcher broke down, launching again: {error}", file=sys.stderr)
        cut_off = [name for name in touched if _status(folder / name).get("state") in ("running", "interrupted")]
        if len(batch) == 1 and cut_off:
            record.write_status(folder / cut_off.pop(), state="lost", error=f"its launcher broke down: {error}")
        batches = [[name for name in batch if name not in touched], *batches, *([name] for name in cut_off)]
    return None


def _try(folder: Path, words: list[str], user_folder: Path | None, only: Sequence[str] | None) -> str | None:
    """Launch once; what broke the launcher, in one line, and all of it in sweep.log."""
    try:
        launch.sweep(point, words, folder, user_folder, only)
        return None
    except Exception as failure:
        with (folder / "sweep.log").open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
        return f"{type(failure).__name__}: {failure}".strip().splitlines()[0]


def _status(entry: Path) -> dict[str, Any]:
    return record.read_status(entry) if is_run(entry) else {}


def _settle(folder: Path) -> None:
    """After Ctrl-C: wait for the processes of the runs to end, then mark what they could not mark themselves."""
    entries = [entry for entry in folder.iterdir() if is_run(entry)]
    _wait_until_free(entries)
    for entry in entries:
        status = record.read_status(entry)
        if status["state"] == "running" and not is_locked(entry):
            record.write_status(entry, state="interrupted", error=f"interrupted after {status.get('step')} steps")


def _wait_until_free(entries: Sequence[Path], patience_s: float = SECONDS_TO_SETTLE) -> None:
    """Give the processes of these runs the time to end."""
    deadline = time.monotonic() + patience_s
    while any(is_locked(entry) for entry in entries) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextlib.contextmanager
def _stopped_by_signals(folder: Path, asked: list[int]) -> Iterator[None]:
    """While inside, a Ctrl-C or a polite kill asks all running points to end with a checkpoint; a second ends at once.

    Only a main thread can take signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        stop.ask(folder, INTERRUPTED)
        print("asked to stop: the running points end with a checkpoint; asked again: at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
