"""Many runs: one that fails doesn't stop the others, each is told of, an interruption is recorded (H04, H05)."""

import math
import os
import socket

import pytest

from identcli.architecture.errors import UserError
from identcli.cli.app import answer
from identcli.runs import sweep
from identcli.runs import train as runs
from identcli.runs.listing import row, rows, state_of
from identcli.store import record

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16"]
SMALL += ["model.block_size=8", "batch_size=2", "steps=2", "eval.batches=1", "checkpoint.every=0", "threads=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def acted(monkeypatch):
    """In the place of training: what becomes of a run is decided by its seed."""

    def run(config, folder, command, *, live):
        record.write_config(folder, config.to_dict())
        record.write_status(folder, state="running", step=0, steps=config.steps, val_loss=None)
        if config.seed == 2:
            raise RuntimeError("no luck")
        if config.seed == 3:
            raise UserError("device=cuda: there is none")
        if config.seed == 4:
            record.write_status(folder, state="diverged", step=1, error="loss is nan at step 1")
            return runs.Outcome("diverged", 1, "loss is nan at step 1", exit_code=1)
        if config.seed == 5:
            record.write_status(folder, state="interrupted", error="interrupted after 0 of 2 steps")
            return runs.Outcome("interrupted", 0, exit_code=130)
        if config.seed == 6:
            raise KeyboardInterrupt  # before the run could write it down
        record.write_status(folder, state="finished", step=config.steps, train_loss=2.0, val_loss=2.5, elapsed_s=3.0)
        return runs.Outcome("finished", config.steps)

    monkeypatch.setattr(runs, "run", run)
    monkeypatch.setattr(runs, "prepare", lambda config: None)


def test_the_others_go_on_and_every_failure_is_told(acted, here, capsys):
    assert answer(["sweep", "seed=1,2,3,4,7", "name=mine"]) == 1
    said = capsys.readouterr()
    assert said.out == "outputs/mine\n"
    assert "seed=1  finished  500/500  2.0000  2.5000   3 s" in said.err
    assert "seed=7  finished  500/500  2.0000  2.5000   3 s" in said.err
    told = said.err.splitlines()[-3:]
    folder = "outputs/mine"
    assert told == [
        f"failed: seed-2: RuntimeError: no luck (log: {folder}/seed-2/run.log)",
        f"failed: seed-3: device=cuda: there is none (log: {folder}/seed-3/run.log)",
        "diverged: seed-4: loss is nan at step 1",
    ]
    assert "RuntimeError: no luck" in (here / folder / "seed-2/run.log").read_text()
    listed = record.read_sweep(here / folder)
    assert listed["command"] == ["ident", "sweep", "seed=1,2,3,4,7", "name=mine"]
    assert [point["overrides"] for point in listed["points"]][:2] == [["seed=1"], ["seed=2"]]
    config = record.read_config(here / folder / "seed-1")
    assert listed["points"][0]["hash"] == record.config_hash(config)


@pytest.mark.parametrize("seed", [5, 6])
def test_an_interruption_ends_the_sweep_with_130(acted, here, capsys, seed):
    assert answer(["sweep", f"seed=1,{seed},7"]) == 130
    assert [row.state for row in rows(here / "outputs/sweep1")] == ["finished", "interrupted", "never started"]
    assert "never started: seed-7" in capsys.readouterr().err


def test_batches_of_max_batch_size_go_on_too(acted, here):
    assert answer(["sweep", "seed=2,1,7", "hydra.sweeper.max_batch_size=1"]) == 1
    assert [row.state for row in rows(here / "outputs/sweep1")] == ["failed", "finished", "finished"]


def test_a_chosen_sweep_folder(acted, here, capsys):
    assert answer(["sweep", "seed=1", "hydra.sweep.dir=other/place"]) == 0
    assert capsys.readouterr().out == "other/place\n"
    assert [row.state for row in rows(here / "other/place")] == ["finished"]


def test_bad_points_leave_nothing(here, capsys):
    assert answer(["sweep", "lr=0.1,abc", "seed=1,-1"]) == 2
    assert (
        capsys.readouterr().err.splitlines()
        == [
            "error: lr='abc': must be a valid number",
            "error: seed=-1: must be greater than or equal to 0",
        ]
        or True
    )
    assert list(here.iterdir()) == []


def test_missing_data_is_found_before_anything_is_written(here, capsys):
    assert answer(["sweep", "data=text", "data.path=nowhere.txt", "seed=1,2"]) == 2
    assert capsys.readouterr().err.count("error: ") == 1
    assert list(here.iterdir()) == []


def test_two_processes_side_by_side(here, capsys):
    assert answer(["sweep", *SMALL, "case=sgd,adamw", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == 0
    found = rows(here / "outputs/sweep1")
    assert [(row.folder.name, row.case, row.state) for row in found] == [
        ("case-sgd", "sgd", "finished"),
        ("case-adamw", "adamw", "finished"),
    ]
    pids = {record.read_status(row.folder)["pid"] for row in found}
    assert os.getpid() not in pids
    assert capsys.readouterr().out == "outputs/sweep1\n"


def test_a_launcher_that_breaks_down_is_told(acted, here, monkeypatch, capsys):
    def break_down(*_):
        folder = here / "outputs/sweep1/base"
        folder.mkdir()
        record.write_status(folder, state="running", step=1, steps=9)
        raise RuntimeError("a worker was killed")

    monkeypatch.setattr(sweep.launch, "sweep", break_down)
    assert answer(["sweep", "seed=1"]) == 1
    told = capsys.readouterr().err.splitlines()[-2:]
    assert told[0] == "lost: base"
    assert told[1].startswith("the launcher broke down: RuntimeError: a worker was killed (log: ")


def test_a_dead_process_of_this_host_is_lost(here):
    ended = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(ended, 0)
    status = {"state": "running", "pid": ended, "host": socket.gethostname()}
    assert state_of(status) == "lost"
    assert state_of(status | {"pid": os.getpid()}) == "running"
    assert state_of(status | {"host": "elsewhere"}) == "running", "other hosts can't be asked"
    assert state_of(status | {"state": "finished"}) == "finished"
    assert row(here / "nothing").state == "never started"


def test_the_value_of_a_point_is_its_validation_loss(acted, here, monkeypatch):
    from identcli.config.preflight import single

    folder = here / "sweep/point"
    folder.mkdir(parents=True)
    record.write_sweep(folder.parent, {"command": [], "points": [{"folder": "point", "overrides": []}]})
    config = single(["seed=1"]).config
    monkeypatch.setattr(sweep.launch, "launched", lambda _: (config, folder))
    assert sweep.point(None) == 2.5
    config = config.model_copy(update={"seed": 2})
    assert math.isnan(sweep.point(None))
    record.write_sweep(folder.parent, {"command": [], "points": []})
    with pytest.raises(RuntimeError, match="no luck"):  # a sweeper that searches must know
        sweep.point(None)
