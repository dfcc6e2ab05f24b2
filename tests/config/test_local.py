"""The launcher that forks: how many at a time, what comes back, what becomes of the others when one is killed."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from identcli.config import local
from identcli.config.local import Local, LocalLauncher
from identcli.config.plugins import register
from processes import children_of

pytestmark = pytest.mark.skipif(not local.FORKS, reason="forks only on Linux")


class One:
    """In place of Hydra's launcher for one point: does what stands in its override, and returns what."""

    def __init__(self, folder: Path):
        self.folder = folder

    def launch(self, job_overrides, initial_job_idx):
        ((word,),) = job_overrides
        (self.folder / f"began-{word}-{os.getpid()}").touch()
        if word == "raises":
            raise KeyError(word)
        if word == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "exits":
            os._exit(3)
        if word.startswith("waits"):
            time.sleep(60)
        deadline = time.monotonic() + 10
        while word == "meets" and len(list(self.folder.glob("began-meets-*"))) < 2:
            assert time.monotonic() < deadline, "the other doesn't come"
            time.sleep(0.01)
        if word == "ignores":
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1 if word == "slow" else 0)
        return [(word, initial_job_idx, os.getpid(), os.environ["OMP_NUM_THREADS"])]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def launched(*words, at_once=2, first=0):
        launcher = LocalLauncher(at_once)
        launcher.launcher = One(tmp_path)
        return launcher.launch([[word] for word in words], first)

    return launched


def began(folder):
    return sorted(path.name.split("-")[1] for path in folder.glob("began-*"))


def test_each_point_has_a_process_and_the_answers_their_order(launch):
    returned = launch("slow", "plain", "plain", first=5)
    assert [(word, index) for word, index, *_ in returned] == [("slow", 5), ("plain", 6), ("plain", 7)]
    assert len({pid for *_, pid, _ in returned} | {os.getpid()}) == 4
    assert launch() == []


@pytest.mark.parametrize(("at_once", "overlap"), [(1, 1), (2, 2), (3, 3)])
def test_so_many_at_a_time_and_no_more(tmp_path, at_once, overlap):
    class Counting(One):
        """Waits until as many are there as may be, or no more will come; then a while for one too many."""

        def launch(self, job_overrides, initial_job_idx):
            for what in ("in", "began"):
                (tmp_path / f"{what}-{initial_job_idx}").touch()
            deadline = time.monotonic() + 10
            while len(list(tmp_path.glob("in-*"))) < overlap and len(list(tmp_path.glob("began-*"))) < 4:
                assert time.monotonic() < deadline, "none of the others comes"
                time.sleep(0.01)
            time.sleep(0.2)
            there = len(list(tmp_path.glob("in-*")))
            time.sleep(0.2)
            (tmp_path / f"in-{initial_job_idx}").unlink()
            return [there]

    launcher = LocalLauncher(at_once)
    launcher.launcher = Counting(tmp_path)
    assert max(launcher.launch([["x"]] * 4, 0)) == overlap


def test_side_by_side_they_meet(launch):
    assert [word for word, *_ in launch("meets", "meets")] == ["meets", "meets"]


@pytest.mark.parametrize(("at_once", "points", "shared"), [(2, 2, 2), (1, 3, 1), (8, 2, 2), (-1, 9, 4)])
def test_the_cores_are_shared_out(launch, monkeypatch, at_once, points, shared):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "4")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    threads = {threads for *_, threads in launch(*["plain"] * points, at_once=at_once)}
    assert threads == {str(4 // shared)}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert {threads for *_, threads in launch("plain", "plain")} == {"7"}, "what the user has set is left alone"


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("raises", KeyError, "raises"),
        ("dies", RuntimeError, "the process of a point was killed by SIGKILL"),
        ("exits", RuntimeError, "the process of a point ended with status 3"),
    ],
)
def test_one_that_breaks_is_told_when_the_others_are_done(launch, tmp_path, word, error, said):
    with pytest.raises(error, match=said):
        launch(word, "slow", "slow", "plain")
    assert began(tmp_path) == sorted([word, "slow", "slow", "plain"])


def test_a_ctrl_c_is_the_launching_processs_to_answer(launch):
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(9))  # what a fork inherits
    try:
        assert launch("ignores")[0][0] == "ignores"
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_gives_up_leaves_nobody_behind(launch, tmp_path):
    before = set(children_of("self"))

    def interrupt():
        while len(began(tmp_path)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        launch("waits1", "waits2", "plain")
    deadline = time.monotonic() + 10
    while set(children_of("self")) - before and time.monotonic() < deadline:
        for pid in set(children_of("self")) - before:
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    assert not set(children_of("self")) - before
    assert "plain" not in began(tmp_path)


@pytest.mark.parametrize(("forks", "by"), [(True, "BasicLauncher"), (False, "JoblibLauncher")])
def test_where_forking_is_not_to_be_trusted_joblib_does_it(tmp_path, monkeypatch, forks, by):
    instantiated, of_one = [], One(tmp_path)

    def instantiate(self, *, config, **_):
        instantiated.append(config.hydra.launcher)
        return of_one

    monkeypatch.setattr(local.Plugins, "instantiate_launcher", instantiate)
    monkeypatch.setattr(local, "FORKS", forks)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    register(None)
    config = OmegaConf.create({"hydra": {"launcher": vars(Local(n_jobs=2))}})
    launcher = LocalLauncher(2)
    launcher.setup(hydra_context=None, task_function=None, config=config)
    [inner] = instantiated
    assert inner._target_.endswith(f".{by}")
    assert inner.get("n_jobs") == (None if forks else 2)
    assert config.hydra.launcher._target_ == "hydra_plugins.ident.LocalLauncher", "its own stays"
    [(_, _, pid, _)] = launcher.launch([["plain"]], 0)
    assert (pid == os.getpid()) != forks
