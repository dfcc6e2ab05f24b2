"""Many small pieces of linear algebra, side by side.

LAPACK gains nothing from two threads on matrices of some hundred columns and loses much where cores are shared (a QR of
8 ms on one thread took 86 ms on two beside other work), so each piece has one thread, and there are several at a time:
whole layers of a small model, kv groups of one layer of a large one.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

# A layer is small when so many bytes of its tensors may be in memory once more for every core.
SMALL = 16 << 20

Job = TypeVar("Job")
Result = TypeVar("Result")


def each(jobs: Sequence[Job], work: Callable[[Job], Result], *, side_by_side: bool = True) -> Iterator[Result]:
    """work(job) for each job, in their order; side by side as many at a time as there are cores, each on one thread."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, len(jobs))
    if not side_by_side or workers < 2:
        yield from map(work, jobs)
        return
    before = torch.get_num_threads()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(work, jobs)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)
