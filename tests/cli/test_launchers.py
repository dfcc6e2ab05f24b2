"""Submitit: jobs on this machine, and on a Slurm whose commands are stand-ins (tests/slurm)."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from identcli.cli.app import answer
from identcli.config import overrides
from identcli.config.errors import ConfigErrors
from identcli.config.preflight import many
from identcli.runs.listing import rows
from identcli.store import events, metrics, record
from processes import children_of, parent_of

pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16"]
SMALL += ["model.block_size=8", "batch_size=2", "steps=4", "eval.batches=1", "checkpoint.every=0", "threads=1"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    state = tmp_path / "slurm"
    state.mkdir()
    monkeypatch.setenv("SLURM_STAND_IN", str(state))
    monkeypatch.setenv("PATH", f"{Path(__file__).parents[1] / 'slurm'}{os.pathsep}{os.environ['PATH']}")
    return state


def test_a_slurm_job_for_each_point(slurm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        *SMALL,
        "lr=1e-3,1e30",
        "clip=0",
        "schedule.warmup=0",
        "hydra/launcher=slurm",
        "hydra.launcher.partition=x",
    ]
    assert answer(["sweep", *words, "hydra.launcher.partition=x"]) == 1
    found = rows(tmp_path / "outputs/sweep1")
    assert [(row.state, row.lr) for row in found] == [("finished", 1e-3), ("diverged", 1e30)]
    assert os.getpid() not in {record.read_status(row.folder)["pid"] for row in found}
    [script] = [path.read_text() for path in slurm.glob("*.sh")]
    for asked in ("partition=x", "cpus-per-task=2", "mem=4GB", "time=60", "signal=USR2@60", "array=0-1%2"):
        assert f"#SBATCH --{asked}\n" in script
    assert "diverged: lr=1e+30: diverged at step 1" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks")
def test_points_in_four_processes_on_two_nodes(slurm, tmp_path, monkeypatch, capsys):
    """Preempted by Slurm it is queued again and goes on; killed on the second node it is lost; it is resumed."""
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "batch_size=4", "steps=300", "eval.every=300", "checkpoint.every=40", "collect=off"]
    run = tmp_path / "outputs/sweep1/base"

    def preempt_then_kill():
        tasks = tasks_of(once_at(run, 40)["pid"])
        for task in tasks:  # each of them is told, as by Slurm
            os.kill(task, signal.SIGUSR2)
        while not [event for event in events.read(run) if event["event"] == "resume"]:
            time.sleep(0.05)
        leading = once_at(run, record.read_status(run)["step"] + 40)["pid"]
        [other] = {*tasks_of(leading)} - {parent_of(leading)}
        os.kill(children_of(other)[0], signal.SIGKILL)

    with ThreadPoolExecutor(1) as thread:
        acted = thread.submit(preempt_then_kill)
        launch = ["hydra/launcher=slurm_nodes", "hydra.launcher.gpus_per_node=2"]
        assert answer(["sweep", *words, "seed=7", "processes=4", *launch]) == 1
        acted.result()
    [script] = [path.read_text() for path in slurm.glob("*.sh")]
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=2\n" in script
    assert "lost: base: process 1 of 2: killed by SIGKILL: out of memory? (log: " in capsys.readouterr().err
    assert "asked to stop by SIGTERM" in (run / "run.log").read_text()

    assert answer(["sweep", "--resume", "outputs/sweep1", "hydra/launcher=basic"]) == 0
    assert answer(["train", *words, "seed=7", "name=alone"]) == 0
    four, one = metrics.read(run, "train"), metrics.read(tmp_path / "outputs/alone", "train")
    assert list(four["step"]) == list(range(300)), "each row once, whatever happened"
    assert np.abs(four["loss"] - one["loss"]).max() < 1e-6
    assert record.read_environment(run)["processes"] == 4
    assert list(run.glob(".tmp-meeting*")) == []


def once_at(run, step, patience_s=60):
    """The status, once the run trains past this step."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if (run / "status.json").exists():
            status = record.read_status(run)
            if status["state"] == "running" and status["step"] >= step:
                return status
        time.sleep(0.02)
    raise AssertionError(f"{run} doesn't get to step {step}")


def tasks_of(pid):
    """The tasks of the job, of which one has started this process."""
    return children_of(parent_of(parent_of(pid)))


def test_processes_and_tasks_must_fit_together():
    with pytest.raises(ConfigErrors, match=r"processes=3: can't be shared out over .* = 2 tasks"):
        many(["hydra/launcher=slurm_nodes", "processes=3", "batch_size=6", "seed=1,2"])
    with pytest.raises(ConfigErrors, match="processes=1,2: can't be swept, for it changes no result"):
        many(["processes=1,2"])


@pytest.mark.parametrize("launcher", ["submitit_local", "submitit_slurm", "slurm_gpu"])
def test_its_launchers_can_be_chosen(launcher):
    assert many([f"hydra/launcher={launcher}", "seed=1,2"]).words == [f"hydra/launcher={launcher}"]


def test_a_preset_without_its_package_says_which(monkeypatch):
    monkeypatch.setitem(overrides.PRESETS, "slurm", "ray")
    with pytest.raises(ConfigErrors, match="hydra/launcher=ray needs a package: pip install hydra-ray-launcher"):
        many(["hydra/launcher=slurm"])
