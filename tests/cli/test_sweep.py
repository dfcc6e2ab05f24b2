"""`ident sweep` as typed: what it prints, what it leaves, how it is resumed, what becomes of a killed worker."""

import json
import os
import signal
import threading
import time

import pytest

from identcli.cli.app import answer
from identcli.runs.listing import rows
from identcli.store import metrics, record

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16"]
SMALL += ["model.block_size=8", "batch_size=2", "steps=4", "eval.batches=1", "checkpoint.every=0", "threads=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_and_its_resume(here, capsys):
    words = ["sweep", *SMALL, "lr=1e-3,1e30", "clip=0", "schedule.warmup=0", "stop_at=2", "hydra.sweep.dir=other/place"]
    assert answer(words) == 1
    said = capsys.readouterr()
    assert said.out == "other/place\n"
    folder = here / "other/place"
    listed = record.read_sweep(folder)
    assert (listed["command"], listed["words"]) == (["ident", *words], words[1:])
    *_, bad, summary, command = said.err.splitlines()
    assert bad.startswith("diverged: lr=1e+30: diverged at step 1: the loss is ")
    assert bad.endswith("(log: other/place/lr-1e+30/run.log)")
    assert summary == "of 2 points: 1 interrupted, 1 diverged"
    assert command == "ident sweep --resume other/place"
    assert answer(["runs", "other/place/lr-1e+30"]) == 0
    said = capsys.readouterr().out
    assert "\nerror      diverged at step 1: the loss is " in said
    assert " INFO diverged at step 1: " in said.partition("\n\n")[2], "the end of its log"

    assert answer(["sweep", "--resume", "other/place", "hydra.sweeper.max_batch_size=1"]) == 1
    said = capsys.readouterr()
    assert said.out == "other/place\n"
    assert said.err.splitlines()[-1] == "of 2 points: 1 finished, 1 diverged", "nothing is left to resume"
    assert [row.state for row in rows(folder)] == ["finished", "diverged"]
    assert list(metrics.read(folder / "lr-0.001", "train")["step"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["lr=0.1,abc", "seed=1,-1"],
            ["seed=-1: must be greater than or equal to 0", "lr='abc': must be a valid number"],
        ),
        (["data=text", "data.path=nowhere.txt", "seed=1,2"], None),
        (["--resume", "nowhere"], ["nowhere: no sweep"]),
    ],
    ids=["points", "data", "resume"],
)
def test_bad_input_leaves_nothing(here, capsys, words, lines):
    assert answer(["sweep", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(lines or "1")
    assert lines is None or errors == [f"error: {line}" for line in lines]
    assert list(here.iterdir()) == []


def test_a_resume_changes_no_point(here, capsys):
    record_sweep(here / "s", words=["lr=1,2"])
    assert answer(["sweep", "--resume", "s", "lr=3", "hydra/sweeper=basic", "hydra.sweep.dir=x"]) == 2
    rule = "a sweep is resumed with the points it has; only its launcher may change"
    told = sorted(capsys.readouterr().err.splitlines())
    assert told == [f"error: {key}: {rule}" for key in ("hydra.sweep.dir", "hydra/sweeper", "lr")]


def test_a_recorded_word_runs_no_code(here, capsys):
    record_sweep(here / "s", words=["+hydra.callbacks.x={_target_: pathlib.Path.touch, self: written}"])
    assert answer(["sweep", "--resume", "s"]) == 2
    assert "refused, for a config may not name code to call" in capsys.readouterr().err
    assert not (here / "written").exists()


def record_sweep(folder, words):
    folder.mkdir()
    points = [{"folder": "a", "overrides": [], "hash": "0", "config": {}}]
    record.write_sweep(folder, {"command": [], "words": words, "config_dir": None, "points": points})


def test_a_killed_point_costs_the_batch_nothing(here, capsys):
    """Two processes side by side; that the process of a launcher is killed is in benchmarks/soak.py."""
    sweep = here / "outputs/sweep1"

    def kill():
        status = sweep / "seed-1/status.json"
        while not status.exists() or not json.loads(status.read_text())["step"]:
            time.sleep(0.02)
        os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    words = [*SMALL, "steps=300", "eval.every=300", "collect=off", "checkpoint.every=50", "seed=1,2"]
    assert answer(["sweep", *words, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == 1
    assert [row.state for row in rows(sweep)] == ["lost", "finished"]
    lost = "lost: seed=1: killed by SIGKILL: out of memory? (log: outputs/sweep1/seed-1/run.log)\n"
    assert lost in capsys.readouterr().err
    assert list(metrics.read(sweep / "seed-2", "train")["step"]) == list(range(300))
