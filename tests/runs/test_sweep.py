"""Many runs: one that fails or is killed doesn't stop the others, each is told of, a resume runs the rest (H04, H05).

Training is acted and Hydra left out: what becomes of a point is written in `fates`, by its seed.
"""

import os
import shutil
import signal
import socket
import sys

import pytest

from identcli.architecture.errors import UserError
from identcli.config.points import Point
from identcli.config.preflight import Many
from identcli.runs import point, stop, sweep
from identcli.runs import resume as resuming
from identcli.runs import train as runs
from identcli.runs.listing import row, rows, state_of
from identcli.store import record
from identcli.store.lock import InUse, locked
from small_run import config

forks = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")


def plan(folder, *seeds):
    made = [config(seed=seed) for seed in seeds]
    points = [Point(f"seed-{one.seed}", [f"seed={one.seed}"], one, record.config_hash(one.to_dict())) for one in made]
    return Many([], points, None, folder)


@pytest.fixture
def fates(tmp_path, monkeypatch):
    """In the place of Hydra and of training. A fate is a function of the run's folder; without one a run finishes."""
    chosen = {}

    def launch_all(task, words, folder, user_folder, only):
        for name in only:
            monkeypatch.setattr(point.launch, "folder_of_job", lambda name=name: folder / name)
            if (folder / ".break" / name).exists():
                (folder / ".break" / name).unlink()
                (folder / name).mkdir(exist_ok=True)
                record.write_config(folder / name, config(seed=int(name[-1])).to_dict())
                record.write_status(folder / name, state="running", step=1, steps=8)
                raise RuntimeError("a worker was killed")
            (folder / name).mkdir(exist_ok=True)
            task(None)

    def train(config, folder, command, *, live):
        record.write_config(folder, config.to_dict())
        record.write_status(folder, state="running", step=0, steps=config.steps, val_loss=None)
        with (folder / "trained").open("a") as file:
            file.write("x")
        chosen.get(config.seed, finish)(folder)

    def resume(folder, changes, command, *, live):
        train(config(seed=record.read_config(folder)["seed"]), folder, command, live=live)

    monkeypatch.setattr(point.launch, "sweep", launch_all)
    monkeypatch.setattr(sweep, "again", lambda recorded, words, user_folder: [])
    monkeypatch.setattr(runs, "run", train)
    monkeypatch.setattr(resuming, "resume", resume)
    return chosen


def finish(folder):
    record.write_status(folder, state="finished", step=8, train_loss=2.0, val_loss=2.5, elapsed_s=3.0)


def end(state, **fields):
    return lambda folder: record.write_status(folder, state=state, **fields)


def fail(error):
    def fate(folder):
        raise error

    return fate


def start(folder, *seeds, fail_fast=False):
    planned = plan(folder, *seeds)
    sweep.claim(planned, ["ident", "sweep"], [], None, fail_fast)
    return sweep.run(planned, folder, None)


def states(report):
    return [row.state for row in report.rows]


def times_trained(folder, seed):
    return len((folder / (seed if seed == "point" else f"seed-{seed}") / "trained").read_text())


@forks
def test_the_others_go_on_and_every_end_has_its_reason(fates, tmp_path):
    fates |= {
        2: fail(RuntimeError("no luck\nat all")),
        3: fail(UserError("device=cuda: there is none")),
        4: end("diverged", step=1, error="diverged at step 1"),
        5: lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    }
    report = start(tmp_path / "s", 1, 2, 3, 4, 5, 6)
    assert states(report) == ["finished", "failed", "failed", "diverged", "lost", "finished"]
    assert [(row.overrides, row.error) for row in report.bad] == [
        (["seed=2"], "RuntimeError: no luck"),
        (["seed=3"], "device=cuda: there is none"),
        (["seed=4"], "diverged at step 1"),
        (["seed=5"], "killed by SIGKILL: out of memory?"),
    ]
    assert "Traceback" in (tmp_path / "s/seed-2/run.log").read_text()
    assert (report.exit_code, report.resumable) == (1, True)
    listed = record.read_sweep(tmp_path / "s")["points"]
    assert listed[0]["hash"] == record.config_hash(record.read_config(tmp_path / "s/seed-1"))


def test_a_resume_runs_what_is_left_by_identity(fates, tmp_path):
    fates |= {2: fail(RuntimeError("no luck")), 4: end("diverged", step=1), 5: end("interrupted", step=3)}
    folder = tmp_path / "s"
    start(folder, 1, 2, 3, 4, 5)
    record.write_config(folder / "seed-3", config(seed=33).to_dict())  # finished, but not what the sweep asks for
    fates.clear()
    report = sweep.resume(folder, [], fail_fast=False)
    assert states(report) == ["finished", "finished", "changed", "diverged", "finished"]
    assert [times_trained(folder, seed) for seed in (1, 2, 3, 4, 5)] == [1, 2, 1, 1, 2]
    assert report.exit_code == 1
    record.write_config(folder / "seed-3", config(seed=3, device="auto", name="other").to_dict())
    assert states(sweep.resume(folder, [], fail_fast=False))[2] == "finished", "device and name are no identity"


def test_a_run_stopped_by_stop_at_did_what_was_asked(fates, tmp_path):
    fates |= {1: end("interrupted", step=5)}
    planned = plan(tmp_path / "s", 1)
    stopped = config(seed=1, stop_at=5)
    planned = Many([], [Point("seed-1", [], stopped, planned.points[0].hash)], None, tmp_path / "s")
    sweep.claim(planned, [], [], None, False)
    report = sweep.run(planned, tmp_path / "s", None)
    assert (states(report), report.exit_code, report.resumable) == (["interrupted"], 0, True)


def test_two_at_once_are_refused_and_a_point_in_use_is_left_alone(fates, tmp_path):
    folder = tmp_path / "s"
    fates |= {1: end("running"), 2: end("interrupted")}
    start(folder, 1, 2)
    fates.clear()
    with locked(folder), pytest.raises(InUse, match=r"in use by another process, pid \d+"):
        sweep.resume(folder, [], fail_fast=False)
    with locked(folder / "seed-1"):
        report = sweep.resume(folder, [], fail_fast=False)
    assert states(report) == ["running", "finished"]
    assert times_trained(folder, 1) == 1
    assert report.exit_code == 1


@forks
def test_fail_fast_starts_no_further_point(fates, tmp_path):
    fates |= {2: fail(RuntimeError("no luck"))}
    report = start(tmp_path / "s", 1, 2, 3, 4, fail_fast=True)
    assert states(report) == ["finished", "failed", "never started", "never started"]
    assert report.rows[3].error == "seed-2 failed, with --fail-fast"
    assert report.rows[3].lr == 0.25, "what it would have been is known"
    fates.clear()
    assert sweep.resume(tmp_path / "s", [], fail_fast=True).exit_code == 0


def test_an_interruption_ends_the_sweep_with_130(fates, tmp_path):
    parent = os.getpid()

    def interrupt(folder):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a run answers the polite kill with its status, as here below
        os.kill(parent, signal.SIGINT)
        while stop.reason_of(folder.parent) is None:
            pass
        record.write_status(folder, state="interrupted", error="interrupted after 0 of 8 steps")

    fates |= {2: interrupt}
    report = start(tmp_path / "s", 1, 2, 3)
    assert states(report) == ["finished", "interrupted", "never started"]
    assert (report.rows[2].error, report.exit_code) == ("interrupted", 130)
    fates.clear()
    assert states(sweep.resume(tmp_path / "s", [], fail_fast=False)) == ["finished"] * 3


@pytest.mark.parametrize("breaks", [["seed-2"], ["seed-1", "seed-2"]], ids=["one", "two"])
def test_a_launcher_that_breaks_down_is_started_again(fates, tmp_path, capsys, breaks):
    folder = tmp_path / "s"
    planned = plan(folder, 1, 2, 3)
    sweep.claim(planned, [], [], None, False)
    (folder / ".break").mkdir()
    for name in breaks:
        (folder / ".break" / name).touch()
    report = sweep.run(planned, folder, None)
    assert (states(report), report.error, report.exit_code) == (["finished"] * 3, None, 0)
    told = capsys.readouterr().err
    assert told.count("the launcher broke down, launching again: RuntimeError: a worker was killed") == len(breaks)
    assert "Traceback" in (folder / "sweep.log").read_text()


def test_a_launcher_that_never_gets_anywhere_is_told(fates, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no cluster here")

    monkeypatch.setattr(point.launch, "sweep", broken)
    report = start(tmp_path / "s", 1, 2)
    assert (states(report), report.error) == (["never started"] * 2, "RuntimeError: no cluster here")
    assert report.rows[0].error == "RuntimeError: no cluster here"
    assert report.exit_code == 1


def test_a_point_that_breaks_the_launcher_alone_is_lost(fates, tmp_path, monkeypatch):
    def breaks(task, words, folder, user_folder, only):
        for name in only:
            (folder / name).mkdir(exist_ok=True)
            record.write_status(folder / name, state="finished" if name == "seed-1" else "running", step=len(only))
        raise RuntimeError("a worker was killed")

    monkeypatch.setattr(point.launch, "sweep", breaks)
    report = start(tmp_path / "s", 1, 2, 3)
    assert states(report) == ["finished", "lost", "lost"]
    assert report.rows[1].error == "its launcher broke down: RuntimeError: a worker was killed"


def test_a_dead_process_of_this_host_is_lost(tmp_path):
    ended = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(ended, 0)
    status = {"state": "running", "pid": ended, "host": socket.gethostname()}
    assert state_of(status) == "lost"
    assert state_of(status | {"pid": os.getpid()}) == "running"
    assert state_of(status | {"host": "elsewhere"}) == "running", "other hosts can't be asked"
    assert state_of(status | {"state": "finished"}) == "finished"
    assert row(tmp_path / "nothing").state == "never started"


def test_a_sweeper_that_searches_is_told_of_the_loss_and_of_the_failure(fates, tmp_path, monkeypatch):
    folder = tmp_path / "s/point"
    folder.mkdir(parents=True)
    record.write_sweep(folder.parent, {"command": [], "points": []})
    monkeypatch.setattr(point.launch, "folder_of_job", lambda: folder)
    monkeypatch.setattr(point.launch, "launched", lambda _: (config(seed=1), folder))
    assert point.point(None) == 2.5
    assert times_trained(folder.parent, "point") == 1
    assert point.point(None) == 2.5, "launched again, as clusters do, it isn't trained again"
    assert times_trained(folder.parent, "point") == 1
    shutil.rmtree(folder)
    folder.mkdir()
    fates |= {1: fail(RuntimeError("no luck"))}
    with pytest.raises(RuntimeError, match="no luck"):
        point.point(None)
    assert [row.state for row in rows(folder.parent)] == ["failed"]
    with pytest.raises(UserError, match="chosen by a search, which can't be resumed"):
        sweep.resume(folder.parent, [], fail_fast=False)
    stop.ask(folder.parent, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        point.point(None)
