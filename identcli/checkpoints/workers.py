"""Many small pieces of linear algebra, side by side.

LAPACK gains nothing from two threads on matrices of some hundred columns and loses much where cores are shared (a QR of
8 ms on one thread took 86 ms on two beside other work), so each layer has one thread, and there are several at a time.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

# Bytes of tensors that may be in work at once beyond those of one layer.
SPARE = 32 << 20

Job = TypeVar("Job")
Result = TypeVar("Result")


def each(jobs: Sequence[Job], work: Callable[[Job], Result], job_bytes: int) -> Iterator[Result]:
    """work(job) for each job, in order, some at a time; of large ones (`job_bytes`) one at a time on all threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, len(jobs), SPARE // max(job_bytes, 1))
    if workers < 2:
        yield from map(work, jobs)
        return
    before = torch.get_num_threads()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(work, jobs)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)
