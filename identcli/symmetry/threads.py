"""Work in parts that are each too small to be shared out: as many side by side as torch has threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """`work` of each part, in order. Each thread computes on one core and without gradients.

    torch would give every operation to all cores; where one takes microseconds, they wait for each other longer than
    they work, and LAPACK on a small matrix is three times slower on two cores than on one.
    """

    def alone(part: Part) -> Result:
        with torch.no_grad():  # threads don't inherit it
            return work(part)

    threads = torch.get_num_threads()
    if threads == 1:
        return [alone(part) for part in parts]
    return list(_pool(threads, os.getpid()).map(alone, parts))


def hand_in_hand(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """`side_by_side` where the thread that asks works as well, and whoever is done takes the next part.

    For work of milliseconds, which another thread may begin late: it seems that torch's own threads, which look for
    more work for a while after an operation on all cores, keep the cores from it. A lone part waits for nobody.
    """
    parts, threads = list(parts), torch.get_num_threads()
    if threads == 1:
        return side_by_side(work, parts)
    waiting = iter(enumerate(parts))  # Python takes the next of it in one go: no two threads get the same
    done: dict[int, Result] = {}

    def take() -> None:
        try:
            with torch.no_grad():
                for place, part in waiting:
                    done[place] = work(part)
        except BaseException:
            list(waiting)  # nobody begins another
            raise

    helpers = min(threads, len(parts)) - 1
    helping = [_pool(threads, os.getpid()).submit(take) for _ in range(helpers)]
    try:
        torch.set_num_threads(1)
        take()
    finally:
        torch.set_num_threads(threads)
        wait(helping)
    for each in helping:
        each.result()
    return [done[place] for place in range(len(parts))]


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: a new one has no memory of its own yet, nor has LAPACK in it. A fork has none at all."""
    all_there = Barrier(threads)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # asked for the first time in a thread, torch takes over what is set for all
        all_there.wait()

    try:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="side", initializer=start)
        list(pool.map(lambda _: None, range(threads)))
        return pool
    finally:
        torch.set_num_threads(threads)  # `start` has also set what threads yet to come start with
