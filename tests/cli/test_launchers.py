"""Submitit: jobs on this machine, and on a Slurm whose commands are stand-ins (tests/slurm)."""

import os
from pathlib import Path

import pytest

from identcli.cli.app import answer
from identcli.config import overrides
from identcli.config.errors import ConfigErrors
from identcli.config.preflight import many
from identcli.runs.listing import rows
from identcli.store import record

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


@pytest.mark.parametrize("launcher", ["submitit_local", "submitit_slurm", "slurm_gpu"])
def test_its_launchers_can_be_chosen(launcher):
    assert many([f"hydra/launcher={launcher}", "seed=1,2"]).words == [f"hydra/launcher={launcher}"]


def test_a_preset_without_its_package_says_which(monkeypatch):
    monkeypatch.setitem(overrides.PRESETS, "slurm", "ray")
    with pytest.raises(ConfigErrors, match="hydra/launcher=ray needs a package: pip install hydra-ray-launcher"):
        many(["hydra/launcher=slurm"])
