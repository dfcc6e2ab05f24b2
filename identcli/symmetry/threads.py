"""Work in parts that are each too small to be shared out: as many side by side as torch has threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """`work` of each part, in order. Each thread computes on one core and without gradients; a single part is done by
    the thread that asks.

    torch would give every operation to all cores; where one takes microseconds, they wait for each other longer than
    they work, and LAPACK on a small matrix is three times slower on two cores than on one.
    """

    def alone(part: Part) -> Result:
        with torch.no_grad():  # threads don't inherit it
            return work(part)

    parts, threads = list(parts), torch.get_num_threads()
    if threads == 1:
        return [alone(part) for part in parts]
    if len(parts) > 1:
        return list(_pool(threads, os.getpid()).map(alone, parts))
    try:
        torch.set_num_threads(1)
        return [alone(part) for part in parts]
    finally:
        torch.set_num_threads(threads)


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
