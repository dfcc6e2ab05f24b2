"""One run of a sweep, in whatever process and on whatever machine the launcher gives it."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from identcli.config import launch
from identcli.config.schema import RunConfig, parse
from identcli.runs import stop, tasks
from identcli.runs.apart import Ended, apart
from identcli.runs.process import spare_the_collector
from identcli.store import record
from identcli.store.folder import is_run
from identcli.store.lock import InUse, is_locked

INTERRUPTED = "interrupted"
SECONDS_TO_FIND_OUT = 30.0

# States that are left alone: a run that has diverged would diverge again.
FINAL = ("finished", "diverged")

_BEGAN = (os.getpid(), os.getppid())
_launching: list[int] = []
_watching, _training = threading.Event(), threading.Event()


def point(composed: Any) -> float:
    """Train one point from where it stands: the last validation loss, NaN if there is none.

    It trains in a process of its own, or in as many as `processes` says, so that a kill ends this run and no other. A
    failure is written down and ends this run alone; a sweeper that searches is told of it by the exception. Of a listed
    point config and identity are those of sweep.json. A launcher pickles this function by its name.
    """
    folder = launch.folder_of_job()
    sweep = record.read_sweep(folder.parent)
    listed = next((each for each in sweep["points"] if each["folder"] == folder.name), None)
    config = parse(listed["config"]) if listed else launch.launched(composed)[0]
    if _status(folder).get("state") in FINAL:  # a cluster has launched it twice
        return _fared(folder, sweep)
    orphaned = _orphaned()
    if orphaned() or stop.reason_of(folder.parent) is not None:
        if not listed:
            raise KeyboardInterrupt
        return math.nan

    # torch and all else, once, here: each child begins with it.
    spare_the_collector()
    import identcli.runs.resume  # noqa: F401
    from identcli.training.parallel import places

    def stopped() -> bool:
        return orphaned() or stop.reason_of(folder.parent) == INTERRUPTED

    task, count = tasks.own_of_all()
    _training.set()
    try:
        with tasks.meeting(folder, task, stopped) if count > 1 else nullcontext() as meeting:
            if count == 1 or meeting:
                there = places(config.processes, task, count, meeting)
                apart(lambda: _train(config, folder, sweep["command"]), stopped, there)
    except Ended as ended:
        _wait_for_the_writer(folder)
        _write_down(config, folder, ended)
    finally:
        _training.clear()
    return _fared(folder, sweep)


def launches_here() -> None:
    """Say that this process launches the sweep: points that run in it aren't orphans when its shell is gone."""
    _launching.append(os.getpid())


def _orphaned() -> Callable[[], bool]:
    """Whether the process that launches the sweep is gone, as seen from a worker that it has started."""
    own, (began, parent) = os.getpid(), _BEGAN
    if own in _launching or (own != began and not _launching):
        return lambda: False
    if own != began:  # forked off the launching process, which has imported this
        parent = _launching[-1]
    if not _watching.is_set():
        _watching.set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is answered by the launching process
        threading.Thread(target=_leave_when_orphaned, args=(parent,), daemon=True).start()
    return lambda: os.getppid() != parent


def _leave_when_orphaned(parent: int) -> None:
    """A worker whose launcher was killed waits for work that never comes: end it once its point has ended."""
    while os.getppid() == parent or _training.is_set():
        time.sleep(1)
    os._exit(1)


def _train(config: RunConfig, folder: Path, command: list[str]) -> None:
    import torch

    from identcli.runs.resume import resume
    from identcli.runs.train import run

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):  # a launcher may have set it when torch, which reads it, was there already
        torch.set_num_threads(int(threads))
    with suppress(InUse):  # the other process writes how it fares
        if is_run(folder):
            resume(folder, {}, command, live=False)
        else:
            run(config, folder, command, live=False)


def _wait_for_the_writer(folder: Path) -> None:
    """It may be at another node, and still find out that a process of its run is gone."""
    deadline = time.monotonic() + SECONDS_TO_FIND_OUT
    while is_locked(folder) and time.monotonic() < deadline:
        time.sleep(0.05)


def _write_down(config: RunConfig, folder: Path, ended: Ended) -> None:
    """How a run ended that could not write it itself. Where the disk takes nothing, the run stays as it is."""
    if is_locked(folder) or _status(folder).get("state") in FINAL:
        return
    reason, plain = str(ended).splitlines()[0], config.to_dict()
    state = "failed" if ended.log or ended.wrong else "lost"
    if ended.asked:
        state, reason = "interrupted", "interrupted while it began"
    with suppress(OSError):
        if not (folder / "config.yaml").exists():
            record.write_config(folder, plain)
        with (folder / "run.log").open("a", encoding="utf-8") as file:
            file.write((ended.log or str(ended)).rstrip() + "\n")
        record.write_status(
            folder, state=state, error=reason, steps=config.steps, config_hash=record.config_hash(plain), pid=ended.pid
        )


def _fared(folder: Path, sweep: Mapping[str, Any]) -> float:
    status = _status(folder)
    state, error = status.get("state"), status.get("error")
    if state in ("failed", "lost", "diverged"):
        if sweep.get("fail_fast"):
            stop.ask(folder.parent, f"{folder.name} {state}, with --fail-fast")
        if not sweep["points"] and state != "diverged":
            raise RuntimeError(error)
    loss = status.get("val_loss") if state == "finished" else None
    return math.nan if loss is None else float(loss)


def _status(folder: Path) -> dict[str, Any]:
    return record.read_status(folder) if is_run(folder) else {}
