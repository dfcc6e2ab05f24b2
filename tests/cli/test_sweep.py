"""`ident sweep` as typed: what it prints, what it leaves, how it is resumed, what becomes of a killed worker."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from identcli.cli.app import answer
from identcli.config.errors import ConfigErrors
from identcli.config.preflight import again
from identcli.runs.listing import rows
from identcli.store import metrics, record
from processes import once_it_trains, parent_of

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16"]
SMALL += ["model.block_size=8", "batch_size=2", "steps=4", "eval.batches=1", "checkpoint.every=0", "threads=1"]
LONG = [*SMALL, "eval.every=1000000", "collect=off", "checkpoint.every=20"]


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
        (
            ["seed=1,2", "hydra/launcher=local", "hydra.launcher.n_jobs=0"],
            ["hydra.launcher.n_jobs=0: must be at least 1, or -1 for as many as there are cores"],
        ),
        (["--resume", "nowhere"], ["nowhere: no sweep"]),
    ],
    ids=["points", "data", "launcher", "resume"],
)
def test_bad_input_leaves_nothing(here, capsys, words, lines):
    assert answer(["sweep", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(lines or "1")
    assert lines is None or errors == [f"error: {line}" for line in lines]
    assert list(here.iterdir()) == []


@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("lr=3", "a sweep is resumed with the points it has; only how they are launched may change, hydra.…"),
        ("hydra/sweeper=basic", "a sweep is resumed with the points it has"),
        ("hydra.sweeper.points=[]", "a sweep is resumed with the points it has"),
        ("hydra.sweep.dir=x", "a sweep is resumed in its own folder"),
        ("hydra.run.dir=x", "is for ident train; a sweep is resumed in its own folder"),
        ("hydra.mode=RUN", "a sweep is resumed as a sweep"),
        ("hydra.searchpath=[file://x]", "the points of a sweep have been composed, so that no config is looked for"),
        ("hydra.job.num=3", "Hydra sets it itself"),
        ("hydra.runtime.cwd=x", "Hydra sets it itself"),
        ("hydra.help.template=x", "is about texts that a resume doesn't show"),
        ("hydra.foo=3", "no such option"),
        ("hydra.launcher.foo=3", "no such option"),
    ],
)
def test_a_resume_says_why_it_does_not_take_a_key(here, capsys, word, why):
    record_sweep(here / "s", words=["lr=1,2"])
    assert answer(["sweep", "--resume", "s", word]) == 2
    assert capsys.readouterr().err == f"error: {word.partition('=')[0]}: {why}\n"


def test_a_resume_takes_what_says_how_to_launch(here):
    """Another launcher begins anew: what was typed for the one before is not for it."""
    recorded = ["lr=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "hydra.verbose=true"]
    assert again(recorded, []) == ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "hydra.verbose=true"]
    assert again(recorded, ["hydra/launcher=basic"]) == ["hydra/launcher=basic", "hydra.verbose=true"]
    words = ["hydra.launcher.n_jobs=1", "hydra.sweeper.max_batch_size=1", "hydra.output_subdir=.hydra"]
    words += ["hydra.job.name=night", "hydra.job.env_set.A=b", "hydra/job_logging=default", "hydra.job.env_copy=[HOME]"]
    assert again(["hydra/launcher=joblib"], words) == [
        "hydra/launcher=joblib",
        *(f"++{word}" if "env_set" in word else word for word in words),
    ]
    with pytest.raises(ConfigErrors, match="n_jobs=1,2: can't be swept, a sweep is launched in one way"):
        again(["hydra/launcher=joblib"], ["hydra.launcher.n_jobs=1,2"])


def test_a_recorded_word_runs_no_code(here, capsys):
    record_sweep(here / "s", words=["+hydra.callbacks.x={_target_: pathlib.Path.touch, self: written}"])
    assert answer(["sweep", "--resume", "s"]) == 2
    assert "refused, for a config may not name code to call" in capsys.readouterr().err
    assert not (here / "written").exists()


def record_sweep(folder, words):
    folder.mkdir()
    points = [{"folder": "a", "overrides": [], "hash": "0", "config": {}}]
    record.write_sweep(folder, {"command": [], "words": words, "config_dir": None, "points": points})


@pytest.mark.parametrize("launcher", ["joblib", "local"])
def test_a_killed_point_costs_the_batch_nothing(here, capsys, launcher):
    """Two processes side by side; that the process of a launcher is killed is in benchmarks/soak.py."""
    sweep = here / "outputs/sweep1"

    def kill():
        os.kill(once_it_trains(sweep / "seed-1")["pid"], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    words = [*SMALL, "steps=300", "eval.every=300", "collect=off", "checkpoint.every=50", "seed=1,2"]
    assert answer(["sweep", *words, f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2"]) == 1
    assert [row.state for row in rows(sweep)] == ["lost", "finished"]
    lost = "lost: seed=1: killed by SIGKILL: out of memory? (log: outputs/sweep1/seed-1/run.log)\n"
    assert lost in capsys.readouterr().err
    assert list(metrics.read(sweep / "seed-2", "train")["step"]) == list(range(300))


@pytest.mark.parametrize(("launcher", "runs"), [("joblib", b"popen_loky"), ("local", b"hydra/launcher=local")])
def test_an_interrupted_sweep_of_few_points_and_many_workers(here, capfd, launcher, runs):
    """A Ctrl-C at a terminal reaches every process of the group; no worker may answer it by itself."""
    words = [*LONG, "steps=1000000", "seed=1,2", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=6"]
    sweeping = subprocess.Popen([sys.executable, "-m", "identcli", "sweep", *words], start_new_session=True)
    statuses = [here / f"outputs/sweep1/seed-{seed}/status.json" for seed in (1, 2)]
    try:
        while not all(path.exists() and json.loads(path.read_text())["step"] for path in statuses):
            assert sweeping.poll() is None
            time.sleep(0.05)
        workers = Path(f"/proc/{sweeping.pid}/task/{sweeping.pid}/children").read_text().split()
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers]
        os.killpg(sweeping.pid, signal.SIGINT)
        assert sweeping.wait(60) == 130
    finally:
        sweeping.kill()
    assert sum(runs in name for name in names) == 2
    said = capfd.readouterr().err
    assert "of 2 points: 2 interrupted\n" in said
    assert "broke down" not in said
    assert "Traceback" not in said


def test_a_killed_process_of_the_launcher_is_made_good(here, capsys):
    sweep = here / "outputs/sweep1"

    def kill():
        os.kill(parent_of(once_it_trains(sweep / "seed-1")["pid"]), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    launch = ["hydra/launcher=local", "hydra.launcher.n_jobs=2"]
    assert answer(["sweep", *LONG, "steps=400", "seed=1,2,3", *launch]) == 0
    assert [row.state for row in rows(sweep)] == ["finished"] * 3
    said = capsys.readouterr().err
    assert said.count("launching again: RuntimeError: the process of a point was killed by SIGKILL\n") == 1
    assert "Traceback" in (sweep / "sweep.log").read_text()
    assert all(list(metrics.read(row.folder, "train")["step"]) == list(range(400)) for row in rows(sweep))


@pytest.mark.parametrize("launcher", ["joblib", "local"])
def test_points_of_a_killed_launching_process_end_with_a_checkpoint(here, capfd, launcher):
    words = [*LONG, "steps=1000000", "seed=1,2", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2"]
    sweeping = subprocess.Popen([sys.executable, "-m", "identcli", "sweep", *words], start_new_session=True)
    sweep = here / "outputs/sweep1"
    try:
        pids = [once_it_trains(sweep / f"seed-{seed}")["pid"] for seed in (1, 2)]
        pids += [parent_of(pid) for pid in pids]
    finally:
        sweeping.kill()
        sweeping.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "neither points nor their launcher's processes"
    assert [row.state for row in rows(sweep)] == ["interrupted"] * 2
    assert all(list((row.folder / "checkpoints").iterdir()) for row in rows(sweep))
    assert "Traceback" not in capfd.readouterr().err


def test_points_side_by_side_share_the_cores(here, monkeypatch):
    """torch, which reads the variable when it is imported, is there already when a point is forked."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    words = [*SMALL, "threads=null", "seed=1,2", "hydra/launcher=local", "hydra.launcher.n_jobs=2"]
    assert answer(["sweep", *words]) == 0
    folders = [row.folder for row in rows(here / "outputs/sweep1")]
    assert [json.loads((each / "environment.json").read_text())["torch_threads"] for each in folders] == [3, 3]


def test_a_sweep_on_ray(here, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="pip install hydra-ray-launcher: 500 MB")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    settings = ["num_cpus=2", "include_dashboard=false"]
    launch = ["hydra/launcher=ray", *(f"hydra.launcher.ray.init.{setting}" for setting in settings)]
    assert answer(["sweep", *SMALL, "lr=1e-3,1e30", "clip=0", "schedule.warmup=0", "processes=2", *launch]) == 1
    found = rows(here / "outputs/sweep1")
    assert [(row.state, row.lr) for row in found] == [("finished", 1e-3), ("diverged", 1e30)]
    assert os.getpid() not in {record.read_status(row.folder)["pid"] for row in found}
