"""Killed at any instant, or out of disk: the folder stays readable, and a resume gives the straight run's result."""

import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import threading
import time

import pytest

from identcli.runs.resume import resume
from identcli.runs.train import run
from identcli.store import atomic, checkpoints, events, metrics, record
from identcli.store.folder import is_run
from small_run import ADAMW, config, same

STEPS, KILLS = 40, 20
SETTINGS = {
    "steps": STEPS,
    "optimizer": ADAMW,
    "lr": 1e-2,
    "model": {"dropout": 0.2},
    "rebalance": {"mode": "on", "every": 11},
    "collect": {"every": 5},
    "eval": {"every": 20},
    "checkpoint": {"every": 4},
}


def go_on(folder):
    """Begin, or resume, as a process that knows nothing of what was before would."""
    if is_run(folder):
        return resume(folder, {}, ["ident"], live=False)
    folder.mkdir(exist_ok=True)
    return run(config(**SETTINGS), folder, ["ident"], live=False)


def killed(folder, instant):
    """Go on in a forked process that is killed at the instant; whether it was killed before it had finished.

    instant: seconds, or the number of the call that makes something on the disk final (fsync, replace, rename).
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
            if isinstance(instant, int):
                _kill_at_call(instant)
            else:
                threading.Timer(instant, os.kill, (os.getpid(), signal.SIGKILL)).start()
            outcome = go_on(folder)
            os._exit(0 if outcome.state == "finished" else 1)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), (folder / "run.log").read_text()
    return code != 0


def _kill_at_call(number):
    calls = iter(range(1, 10**9))

    def counted(function):
        def call(*arguments, **options):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("fsync", "replace", "rename"):
        setattr(os, name, counted(getattr(os, name)))


def readable(folder):
    """Everything in the folder can be read, each step once; the newest whole checkpoint."""
    if not is_run(folder):
        return None
    record.read_status(folder)
    record.read_config(folder)
    events.read(folder)
    for table in ("train", "eval", "heads", "biases"):
        metrics.read(folder, table)
    steps = metrics.read(folder, "train")["step"]
    assert list(steps) == list(range(len(steps)))
    return checkpoints.latest(folder).path


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_killed_at_twenty_instants_it_ends_as_the_straight_run(tmp_path):
    straight, folder = tmp_path / "straight", tmp_path / "killed"
    import torch._dynamo  # noqa: F401  # else the first optimizer does it, in each child

    began = time.monotonic()
    go_on(straight)
    whole_s = time.monotonic() - began
    draw = random.Random(7)
    instants = [draw.uniform(0, whole_s / 3) if kill % 2 else draw.randint(1, 60) for kill in range(KILLS)]
    while instants:
        if killed(folder, instants[0]):
            instants.pop(0)
            readable(folder)
        if is_run(folder) and record.read_status(folder)["state"] == "finished":
            same(straight, folder, STEPS)  # it got to the end: once more from the start
            shutil.rmtree(folder)
    go_on(folder)
    same(straight, folder, STEPS)
    assert not list(folder.rglob(f"{atomic.TEMPORARY}*"))


@pytest.mark.parametrize("part", ["metrics", "checkpoints"])
def test_a_full_disk_is_a_failure_with_a_readable_folder(tmp_path, monkeypatch, part):
    """From the fifth large file on the disk takes no more; small ones still find room."""
    written = []
    sync = atomic.sync_file

    def full(path):
        if part in path.parts:
            written.append(path)
            if len(written) > 5:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    straight, folder = tmp_path / "straight", tmp_path / "full"
    go_on(straight)
    monkeypatch.setattr(atomic, "sync_file", full)
    outcome = go_on(folder)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    status = record.read_status(folder)
    assert (status["state"], status["error"]) == ("failed", "OSError: [Errno 28] No space left on device")
    assert readable(folder) is not None
    monkeypatch.undo()
    assert go_on(folder).state == "finished", "and goes on when there is room again"
    same(straight, folder, STEPS)


def test_a_disk_without_any_room_ends_the_run_with_its_reason(tmp_path, monkeypatch, capsys):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "run").mkdir()
    prepared = config(**SETTINGS | {"steps": 3, "checkpoint": {"every": 0}})
    monkeypatch.setattr(
        "identcli.runs.session.Session.updated", lambda *_: monkeypatch.setattr(atomic, "write_bytes", full)
    )
    outcome = run(prepared, tmp_path / "run", ["ident"], live=False)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert "status.json can't be written: [Errno 28]" in capsys.readouterr().err
    assert record.read_status(tmp_path / "run")["state"] == "running"
