"""Work in parts that are each too small to be shared out: as many side by side as torch has threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """`work` of each part, in order. Each thread computes on one core and without gradients.

    torch would give every operation to all cores; where one takes microseconds, they wait for each other longer than
    they work, and LAPACK on a small matrix is three times slower on two cores than on one.
    """
    threads = torch.get_num_threads()

    def alone(part: Part) -> Result:
        with torch.no_grad():  # threads don't inherit it
            return work(part)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(alone, parts))
    finally:
        torch.set_num_threads(threads)  # it also sets what threads yet to come start with
