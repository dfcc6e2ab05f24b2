"""A function in a process of its own: its answer, its end, and who tells it to end."""

import os
import signal
import sys
import time

import pytest

from identcli.config.errors import ConfigErrors
from identcli.runs import apart as module
from identcli.runs.apart import Ended, apart
from identcli.runs.interruption import interruption

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")


def wait_for_the_signal(ready=lambda: None):
    with interruption() as asked:
        ready()  # a signal that comes before would end this process at once
        while not asked.asked:
            time.sleep(0.01)
    return "ended politely"


def test_the_answer_comes_from_another_process():
    pid, text = apart(lambda: [os.getpid(), "é" * 100_000])
    assert pid != os.getpid()
    assert text == "é" * 100_000, "longer than a pipe holds"


def test_a_kill_is_named_and_costs_nothing_here():
    with pytest.raises(Ended, match="killed by SIGKILL: out of memory?") as caught:
        apart(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert caught.value.pid != os.getpid()
    with pytest.raises(Ended, match="killed by SIGHUP$"):
        apart(lambda: os.kill(os.getpid(), signal.SIGHUP))


def test_what_it_raises_comes_back_as_the_reason():
    def broken():
        raise RuntimeError("nothing works\nat all")

    def wrong():
        raise ConfigErrors(["lr: too low", "seed: too high"])

    with pytest.raises(Ended, match="^RuntimeError: nothing works\nat all$") as caught:
        apart(broken)
    assert "in broken" in caught.value.log
    with pytest.raises(Ended) as caught:
        apart(wrong)
    assert (caught.value.wrong, caught.value.log) == (["lr: too low", "seed: too high"], "")


def test_it_is_told_once_when_it_is_to_stop():
    assert apart(wait_for_the_signal, stop=lambda: True) == "ended politely"


def test_a_polite_kill_is_passed_on_and_waited_for():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("here"))
    try:
        parent = os.getpid()

        def tell_the_parent():
            os.kill(parent, signal.SIGTERM)
            return wait_for_the_signal()

        assert apart(tell_the_parent) == "ended politely"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["here"], "and what this process does with it happens too"


def test_it_ends_with_its_parent(tmp_path):
    """The parent is killed; the child, which nobody waits for any more, ends politely."""
    file = tmp_path / "said"
    middle = os.fork()
    if middle == 0:
        try:
            apart(lambda: file.write_text(wait_for_the_signal(lambda: os.kill(os.getppid(), signal.SIGKILL))))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1]) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert file.read_text() == "ended politely"


def test_an_interruption_here_leaves_no_child(tmp_path):
    file = tmp_path / "pid"

    def interrupt_when_it_is_there():
        if file.exists() and file.read_text():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        apart(lambda: [file.write_text(str(os.getpid())), time.sleep(60)], stop=interrupt_when_it_is_there)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_a_cluster_that_requeues_this_process_lets_the_child_end(tmp_path):
    """Submitit answers SIGUSR2 by asking for another turn and leaving; the child must have its checkpoint by then."""
    file, parent = tmp_path / "said", os.getpid()

    def leave(*_):
        raise SystemExit(-1)

    before = signal.signal(signal.SIGUSR2, leave)
    try:
        with pytest.raises(SystemExit):
            apart(lambda: file.write_text(wait_for_the_signal(lambda: os.kill(parent, signal.SIGUSR2))))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert file.read_text() == "ended politely"


PLACES = [{"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"}]


def rank():
    return int(os.environ["RANK"])


def test_several_know_their_places_and_the_first_answers():
    assert apart(lambda: rank(), places=PLACES) == 0
    assert "RANK" not in os.environ


def test_when_one_of_several_is_killed_the_others_end(tmp_path, monkeypatch):
    """One takes no notice and is told; one doesn't listen either and is killed: a collective operation can hang so."""
    monkeypatch.setattr(module, "SECONDS_TO_NOTICE", 0.1)
    monkeypatch.setattr(module, "SECONDS_TO_END", 0.3)

    def fate():
        (tmp_path / str(rank())).write_text(str(os.getpid()))
        if rank() == 0:
            (tmp_path / "said").write_text(wait_for_the_signal())
        if rank() == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        if rank() == 2:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(Ended, match="^process 3 of 3: killed by SIGKILL: out of memory\\?$") as caught:
        apart(fate, places=PLACES)
    assert caught.value.pid == int((tmp_path / "2").read_text())
    assert (tmp_path / "said").read_text() == "ended politely"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "1").read_text()), 0)


def test_who_is_told_before_it_listens_ends_as_asked():
    with pytest.raises(Ended) as caught:
        apart(lambda: time.sleep(60), stop=lambda: True)
    assert caught.value.asked
