"""Work side by side: each thread on one core, results in order, the same threads again, and new ones after a fork."""

import multiprocessing
import threading
import time

import pytest
import torch

from identcli.symmetry.threads import side_by_side


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_of_one_core_without_gradients(threads):
    def work(part):
        time.sleep(0.01 * (5 - part))
        return part**2, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread().name

    found = side_by_side(work, range(6))
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


def test_a_single_part_is_done_by_the_thread_that_asks_on_one_core(threads):
    def work(part):
        return part, torch.get_num_threads(), torch.is_grad_enabled(), threading.current_thread()

    assert side_by_side(work, [7]) == [(7, 1, False, threading.current_thread())]
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda part: 1 / part, [0])
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_the_threads_stay():
    def who(_):
        time.sleep(0.01)
        return threading.get_ident()

    assert set(side_by_side(who, range(8))) == set(side_by_side(who, range(8)))


def test_what_work_raises_is_raised_and_the_next_work_is_done():
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda part: 1 / part, [1, 0, 1])
    assert side_by_side(lambda part: part + 1, [1, 2]) == [2, 3]
    assert side_by_side(lambda part: part + 1, []) == []


def _in_a_fork(pipe):
    pipe.send(side_by_side(lambda part: part + 1, [1, 2, 3]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system doesn't fork")
def test_a_fork_has_threads_of_its_own():
    side_by_side(lambda part: part, [1, 2, 3])
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(there,))
    child.start()
    try:
        assert here.poll(30), "the fork waits for threads that it doesn't have"
        assert here.recv() == [2, 3, 4]
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
