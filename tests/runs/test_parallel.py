"""A run in two processes is the run in one; and it ends when one of them does."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from identcli.architecture.errors import UserError
from identcli.runs.session import prepare
from identcli.store import events, metrics, record

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


def start(words, folder, environment):
    command = [sys.executable, "-m", "identcli", "train", *SMALL, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def both(words, folder):
    shared = environment()
    return [
        start(words, folder, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in range(2)
    ]


def test_two_processes_train_as_one(tmp_path):
    words = ["steps=12", "case=adamw_rebalanced", "rebalance.every=5", "schedule.warmup=2", "collect=full"]
    alone = start([*words, "name=one"], tmp_path, environment())
    two = both([*words, "name=two"], tmp_path)
    said = [process.communicate(timeout=120) for process in (alone, *two)]
    assert [process.returncode for process in (alone, *two)] == [0, 0, 0], said
    assert [out for out, _ in said] == ["outputs/one\n", "outputs/two\n", ""]
    assert said[2][1] == ""  # the second process says nothing
    one, two = tmp_path / "outputs" / "one", tmp_path / "outputs" / "two"
    # float32 sums in another order: 1e-7 a step, of losses near 2.
    assert np.abs(metrics.read(one, "train")["loss"] - metrics.read(two, "train")["loss"]).max() < 1e-6
    for table in ("eval", "heads", "biases"):
        assert len(metrics.read(one, table)["step"]) == len(metrics.read(two, table)["step"])
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


def test_a_batch_that_cannot_be_shared_out_is_refused(monkeypatch):
    from identcli.training.parallel import Parallel
    from small_run import config

    monkeypatch.setattr("identcli.runs.session.join", lambda device: Parallel(0, 3))
    with pytest.raises(UserError, match="batch_size=4: can't be shared out over 3 processes"):
        prepare(config())
