"""A run in two processes is the run in one; and it ends when one of them does."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.cli.app import answer
from identcli.runs.listing import rows
from identcli.runs.session import prepare
from identcli.store import checkpoints, events, metrics, record
from processes import children_of, once_it_trains, told

SMALL = [
    "data=markov",
    "data.length=2000",
    "model.n_layer=2",
    "model.n_head=2",
    "model.n_embd=16",
    "model.block_size=8",
    "batch_size=4",
    "eval.batches=2",
    "threads=1",
    "device=cpu",
]


def environment(**more):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


def start(words, folder, environment, small=SMALL):
    command = [sys.executable, "-m", "identcli", "train", *small, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def both(words, folder, small=SMALL):
    shared = environment(WORLD_SIZE="2")
    return [start(words, folder, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, small) for rank in range(2)]


def test_two_processes_train_as_one(tmp_path):
    words = ["steps=12", "case=adamw_rebalanced", "rebalance.every=5", "schedule.warmup=2", "collect=full"]
    alone = start([*words, "name=one"], tmp_path, environment())
    two = both([*words, "name=two"], tmp_path)
    said = [process.communicate(timeout=120) for process in (alone, *two)]
    assert [process.returncode for process in (alone, *two)] == [0, 0, 0], said
    assert [out for out, _ in said] == ["outputs/one\n", "outputs/two\n", ""]
    assert said[2][1] == ""  # the second process says nothing
    one, two = tmp_path / "outputs" / "one", tmp_path / "outputs" / "two"
    same_but_for_rounding(one, two)
    assert len(events.read(one)) == len(events.read(two))
    assert record.read_environment(two)["processes"] == 2


def test_a_dying_process_ends_the_run_with_its_reason(tmp_path):
    leader, other = both(["steps=1000000", "eval.every=1000000", "name=a"], tmp_path)
    try:
        status = tmp_path / "outputs" / "a" / "status.json"
        deadline = time.monotonic() + 60
        while not status.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        other.send_signal(signal.SIGKILL)
        leader.communicate(timeout=60)
    finally:
        leader.kill()
        other.kill()
        other.communicate()
    assert leader.returncode == 1
    ended = record.read_status(tmp_path / "outputs" / "a")
    assert ended["state"] == "failed"
    assert "another process of this run has ended" in ended["error"]


def test_a_run_resumed_in_two_processes_is_the_run_in_one(tmp_path, monkeypatch):
    """Under torchrun, and started by processes=2; the first checkpoint is of one process."""
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "steps=12", "schedule.warmup=2", "rebalance=on", "rebalance.every=5", "collect.every=2"]
    assert answer(["train", *words, "name=straight"]) == 0
    assert answer(["train", *words, "name=split", "stop_at=4"]) == 0
    two = both(["--resume", "outputs/split", "stop_at=7"], tmp_path, small=[])
    said = [process.communicate(timeout=120) for process in two]
    assert [process.returncode for process in two] == [0, 0], said
    assert [out for out, _ in said] == ["outputs/split\n", ""]
    assert answer(["train", "--resume", "outputs/split", "processes=2"]) == 0
    one, other = tmp_path / "outputs/straight", tmp_path / "outputs/split"
    same_but_for_rounding(one, other)
    resumes = [event["changes"] for event in events.read(other) if event["event"] == "resume"]
    assert resumes == [{"stop_at": [4, 7]}, {"stop_at": [7, None], "processes": [1, 2]}]


ENDLESS = [*SMALL, "steps=1000000", "eval.every=1000000", "collect=off", "schedule.warmup=0", "processes=2"]
ENDLESS += ["checkpoint.every=50"]  # its status is written then


def test_a_killed_process_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs/run1"

    def kill():
        leading = once_it_trains(folder)["pid"]
        [other] = {*children()} - {leading}
        os.kill(other, signal.SIGKILL)

    with at_the_same_time(kill):
        assert answer(["train", *ENDLESS]) == 1
    assert "error: process 2 of 2: killed by SIGKILL: out of memory?\n" in capsys.readouterr().err
    ended = record.read_status(folder)
    assert ended["state"] == "failed"
    assert ended["error"].startswith("RuntimeError: another process of this run has ended (")
    assert children() == []


def test_a_ctrl_c_reaches_the_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs/run1"

    def interrupt():
        once_it_trains(folder)
        assert len(children()) == 2
        os.kill(os.getpid(), signal.SIGINT)

    with at_the_same_time(interrupt):
        assert answer(["train", *ENDLESS]) == 130
    ended = record.read_status(folder)
    assert (ended["state"], checkpoints.list_steps(folder)[-1]) == ("interrupted", ended["step"])
    assert children() == []


def test_a_point_of_a_sweep_in_two_processes(tmp_path, monkeypatch, capsys):
    """Killed in one of them it is lost, the others go on; interrupted and resumed it is the run of one process."""
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "schedule.warmup=0", "steps=400", "eval.every=400", "checkpoint.every=50", "collect=off"]
    folder = tmp_path / "outputs/s"

    def kill_then_interrupt():
        leading = once_it_trains(folder / "seed-1")["pid"]
        [other] = {*children()} - {leading}
        os.kill(other, signal.SIGKILL)
        once_it_trains(folder / "seed-2")
        os.kill(os.getpid(), signal.SIGINT)

    with at_the_same_time(kill_then_interrupt):
        assert answer(["sweep", *words, "name=s", "processes=2", "seed=1,2,3"]) == 130
    assert [row.state for row in rows(folder)] == ["lost", "interrupted", "never started"]
    assert "lost: seed=1: process 2 of 2: killed by SIGKILL: out of memory? (log: " in capsys.readouterr().err
    assert answer(["sweep", "--resume", "outputs/s"]) == 0
    assert answer(["train", *words, "seed=2", "name=alone"]) == 0
    same_but_for_rounding(tmp_path / "outputs/alone", folder / "seed-2")
    assert record.read_environment(folder / "seed-2")["processes"] == 2
    assert children() == []


@contextmanager
def at_the_same_time(act):
    """`act` in a thread meanwhile; what it raises ends what goes on here, and comes through."""

    def acted():
        try:
            act()
        except BaseException:
            os.kill(os.getpid(), signal.SIGINT)
            raise

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(acted)
        try:
            yield
        finally:
            done.result()


def children():
    """Forks of this process; what joblib keeps beside it runs another command."""
    own = told(Path("/proc/self/cmdline"))
    return [child for child in children_of("self") if told(Path(f"/proc/{child}/cmdline")) == own]


def same_but_for_rounding(one, two):
    """float32 sums in another order: 1e-7 a step, of losses near 2."""
    assert np.abs(metrics.read(one, "train")["loss"] - metrics.read(two, "train")["loss"]).max() < 1e-6
    for table in ("train", "eval", "heads", "biases"):
        assert list(metrics.read(one, table)["step"]) == list(metrics.read(two, table)["step"])


@pytest.mark.parametrize(
    ("words", "started", "line"),
    [
        (["processes=3"], {}, "batch_size=4: can't be shared out over processes=3"),
        (["processes=2", "device=cuda"], {}, "device=cuda: not available on this machine, which has cpu"),
        (["processes=2"], {"WORLD_SIZE": "4", "RANK": "0"}, "processes=2: but 4 were started, by torchrun"),
    ],
    ids=["batch", "device", "torchrun"],
)
def test_what_cannot_be_is_told_once_and_leaves_nothing(tmp_path, monkeypatch, capsys, words, started, line):
    if line.startswith("device") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert answer(["train", *SMALL, *words]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_under_torchrun_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert answer(["sweep", *SMALL, "seed=1,2"]) == 2
    assert capsys.readouterr().err.startswith("error: ident sweep under torchrun: ")


def test_a_batch_that_cannot_be_shared_out_is_refused(monkeypatch):
    from identcli.training.parallel import Parallel
    from small_run import config

    monkeypatch.setattr("identcli.runs.session.join", lambda device: Parallel(0, 3))
    with pytest.raises(UserError, match="batch_size=4: can't be shared out over 3 processes"):
        prepare(config())
