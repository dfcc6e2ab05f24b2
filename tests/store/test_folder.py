"""Taking folders without a race, and saying what lies at a path."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from identcli.architecture.errors import UserError
from identcli.store.folder import NotARun, claim, is_run, is_sweep, one_run, runs_in
from identcli.store.record import write_status, write_sweep


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_status(folder, state="running", step=0)
    return folder


def make_sweep(folder: Path, *points: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep(folder, {"command": [], "points": [{"folder": point} for point in points]})
    return folder


def claim_together(parent: Path, barrier: Any, count: int, answers: Any) -> None:
    barrier.wait()
    answers.put([claim(parent, None, "run").name for _ in range(count)])


def test_processes_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes, each = 5, 20
    barrier, answers = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=claim_together, args=(tmp_path / "outputs", barrier, each, answers))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    names = [name for _ in workers for name in answers.get(timeout=20)]
    for worker in workers:
        worker.join()
    assert sorted(names) == sorted(f"run{number}" for number in range(1, processes * each + 1))
    assert {child.name for child in (tmp_path / "outputs").iterdir()} == set(names)


def test_numbers_go_on_after_the_highest(tmp_path: Path) -> None:
    for name in ("run2", "run9", "run010", "runner", "run12b", "sweep40"):
        (tmp_path / name).mkdir()
    (tmp_path / "run11").write_text("a file takes its number too")
    assert claim(tmp_path, None, "run").name == "run12"
    assert claim(tmp_path, None, "run").name == "run13"
    assert claim(tmp_path, None, "sweep").name == "sweep41"


def test_the_first_number_and_the_missing_parent(tmp_path: Path) -> None:
    folder = claim(tmp_path / "a" / "b", None, "run")
    assert folder == tmp_path / "a" / "b" / "run1"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["1e5", "007", "null", "true", "lr_0.5-seed_1", "é", "a..b"])
def test_a_name_that_looks_like_something_else_is_a_name(tmp_path: Path, name: str) -> None:
    assert claim(tmp_path, name, "run") == tmp_path / name


def test_an_existing_name_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo" / "kept").write_text("x")
    with pytest.raises(UserError, match="foo exists already: choose another name"):
        claim(tmp_path, "foo", "run")
    assert (tmp_path / "foo" / "kept").read_text() == "x"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "a\\b", "../x", "a=b", "a,b", "a b", " a", "a\n", "a\tb", "a\0b", "a\x1b", "a:b"],
)
def test_a_name_that_is_not_plain_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UserError, match="^name=.*must (be a plain folder name|not be(gin with a dot| empty))"
    ) as caught:
        claim(tmp_path / "outputs", name, "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "outputs").exists()


def test_a_name_too_long_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't make a run folder there: File name too long"):
        claim(tmp_path, "x" * 300, "run")


@pytest.mark.parametrize("name", [None, "foo"])
def test_a_parent_that_is_a_file(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "outputs").write_text("")
    with pytest.raises(UserError, match="outputs: is a file; runs need a folder there"):
        claim(tmp_path / "outputs", name, "run")
    with pytest.raises(UserError, match="can't make a run folder there: Not a directory"):
        claim(tmp_path / "outputs" / "below", name, "run")


def test_a_parent_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # a mode of 0555 would not stop a test that runs as root
    with pytest.raises(UserError, match="can't make a run folder there: Permission denied"):
        claim(tmp_path, None, "run")


def test_a_run_is_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run1")
    assert is_run(run)
    assert not is_sweep(run)
    assert runs_in(run) == [run]
    assert one_run(run) == run


def test_points_of_a_sweep_come_in_their_listed_order(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep1", "lr_0.5", "lr_0.25", "never_started", "lr_0.0625")
    runs = [make_run(sweep / name) for name in ("lr_0.0625", "lr_0.25", "lr_0.5")]
    make_run(sweep / "not_listed")
    assert is_sweep(sweep)
    assert not is_run(sweep)
    assert runs_in(sweep) == runs[::-1]


def test_a_folder_of_runs_gives_them_in_natural_order(tmp_path: Path) -> None:
    for name in ("run10", "run2", "b1"):
        make_run(tmp_path / name)
    make_run(make_sweep(tmp_path / "sweep1", "p2", "p1") / "p1")
    make_run(tmp_path / "sweep1" / "p2")
    make_sweep(tmp_path / "sweep2", "never_started")
    make_run(tmp_path / ".hidden")
    (tmp_path / "no_run").mkdir()
    found = [str(run.relative_to(tmp_path)) for run in runs_in(tmp_path)]
    assert found == ["b1", "run2", "run10", "sweep1/p2", "sweep1/p1"]


def test_what_is_no_run_is_called_by_its_name(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    run = make_run(outputs / "run1")
    make_run(outputs / "run2")
    (run / "figures").mkdir()
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "empty").mkdir()
    make_run(make_sweep(tmp_path / "sweep1", "p1") / "p1")
    make_sweep(tmp_path / "sweep2", "p1")
    cases = {
        outputs: "outputs: a folder of runs: name one of run1, run2$",
        outputs / "rnu1": "rnu1: no such folder; nearest: .*outputs/run1",
        tmp_path / "nowhere" / "x": "x: no such folder$",
        tmp_path / "file.txt": "file.txt: a file, not a run folder$",
        tmp_path / "empty": "empty: no run: there is no status.json in it$",
        run / "figures": "figures: a folder inside the run run1, not a run$",
        tmp_path / "sweep1": "sweep1: a sweep, not one run: name one of p1$",
        tmp_path / "sweep2": "sweep2: a sweep, not one run$",
    }
    for path, message in cases.items():
        with pytest.raises(NotARun, match=message):
            one_run(path)
    for path in (outputs / "rnu1", tmp_path / "file.txt", tmp_path / "empty", run / "figures"):
        with pytest.raises(NotARun, match=cases[path]):
            runs_in(path)
    with pytest.raises(NotARun, match="sweep2: a sweep of which no point has started yet$"):
        runs_in(tmp_path / "sweep2")


def test_readers_load_nothing_heavy() -> None:
    code = """
import sys, identcli.store.folder, identcli.store.record, identcli.store.events
heavy = {"torch", "pyarrow", "numpy", "safetensors", "pandas"} & set(sys.modules)
import identcli.store.checkpoints, identcli.store.metrics
heavy |= {"torch", "safetensors", "pandas"} & set(sys.modules)
print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
