"""Work side by side: each thread on one core, results in order, the same threads again, and new ones after a fork."""

import multiprocessing
import threading
import time

import pytest
import torch

from identcli.symmetry.threads import hand_in_hand, side_by_side


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=[side_by_side, hand_in_hand])
def do(request):
    return request.param


def test_results_come_in_order_from_threads_of_one_core_without_gradients(do, threads):
    def work(part):
        time.sleep(0.01 * (5 - part))
        return part**2, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name

    found = do(work, range(6))
    assert [square for square, *_ in found] == [0, 1, 4, 9, 16, 25]
    assert {of_thread for _, of_thread, _, _ in found} == {1}
    assert {with_gradient for _, _, with_gradient, _ in found} == {False}
    assert len({name for *_, name in found}) == threads
    # The thread that asked is as it was, and so is one that starts now.
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    later = []
    other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert later == [threads]


def test_the_thread_that_asks_gives_a_hand_and_does_a_lone_part_by_itself(threads):
    def work(part):
        time.sleep(0.01)
        return part, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread()

    assert hand_in_hand(work, [7]) == [(7, 1, False, threading.current_thread())]
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    who = {thread for *_, thread in hand_in_hand(work, range(6))}
    assert threading.current_thread() in who
    assert len(who) == threads


def test_who_is_late_takes_fewer(threads):
    """While the first part takes long, the others do the rest."""
    others_done = threading.Event()
    finished = []

    def work(part):
        if part == 0 and threads > 1:
            assert others_done.wait(30)
        finished.append(part)
        if len(finished) == 7:
            others_done.set()

    hand_in_hand(work, range(8))
    assert finished[-1] == (0 if threads > 1 else 7)


def test_when_one_fails_nobody_begins_another(threads):
    begun = []

    def work(part):
        begun.append(part)
        time.sleep(0.02)
        return 1 / (part - 2)

    with pytest.raises(ZeroDivisionError):
        hand_in_hand(work, range(100))
    assert len(begun) < 50
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_the_threads_stay(do):
    def who(_):
        time.sleep(0.01)
        return threading.get_ident()

    before = set(side_by_side(who, range(8)))
    assert set(do(who, range(8))) <= before | {threading.get_ident()}
    assert set(side_by_side(who, range(8))) == before


def test_what_work_raises_is_raised_and_the_next_work_is_done(do):
    for parts in ([1, 0, 1], [0, 1, 1], [0]):
        with pytest.raises(ZeroDivisionError):
            do(lambda part: 1 / part, parts)
    assert do(lambda part: part + 1, [1, 2]) == [2, 3]
    assert do(lambda part: part + 1, []) == []


def _in_a_fork(do, pipe):
    pipe.send(do(lambda part: part + 1, [1, 2, 3]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system doesn't fork")
def test_a_fork_has_threads_of_its_own(do):
    do(lambda part: part, [1, 2, 3])
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(do, there))
    child.start()
    try:
        assert here.poll(30), "the fork waits for threads that it doesn't have"
        assert here.recv() == [2, 3, 4]
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
