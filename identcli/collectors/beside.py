"""Measuring beside training: what is needed sets off for the host, threads measure it there, results come in order.

For a GPU. `torch.linalg.eigh` makes the host wait for the device, and solves batches of matrices larger than 32 × 32
one after the other there (pytorch issues 174674 and 175585): the 36 heads of the paper's model would cost more time
than the ten training steps between two measurements. So weights and gradient leave the device by a copy that nobody
waits for, and LAPACK measures them on cores that training leaves idle.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from identcli.symmetry.pair import Pair

T = TypeVar("T")

THREADS = 2  # one measurement takes about as long as ten training steps of the paper's model on a GPU
MOST_WAITING = 4  # measurements that wait or are under way; then training waits


class Departing:
    """A pair on its way to the host. `arrived` waits for it, and for nothing launched after it."""

    def __init__(self, pair: Pair) -> None:
        # Off CUDA a copy that isn't waited for can't be asked whether it is there.
        on_cuda = pair.A.is_cuda
        self._pair = pair.each(lambda part: part.to("cpu", non_blocking=on_cuda))
        self._event = torch.cuda.Event(blocking=True) if on_cuda else None
        if self._event:
            self._event.record()

    def arrived(self) -> Pair:
        """The pair on the host."""
        if self._event:
            self._event.synchronize()
        return self._pair


class Beside(Generic[T]):
    """Does work in threads of its own and hands each result to `deliver`, in order, in the thread that gave the work.

    What the work raises is raised there too, when its turn comes; what was waiting behind it is dropped.
    """

    def __init__(self, deliver: Callable[[T], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[Future[T]] = deque()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="measure")

    def submit(self, work: Callable[[], T]) -> None:
        """Have it done. Delivers what is ready, and waits for the oldest while too much is waiting."""
        self._waiting.append(self._threads.submit(work))
        self._advance(MOST_WAITING)

    def flush(self) -> None:
        """Wait for all that was submitted, and deliver it."""
        self._advance(0)

    def close(self) -> None:
        """Flush; no work is taken afterwards."""
        try:
            self.flush()
        finally:
            self._threads.shutdown()

    def _advance(self, most: int) -> None:
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > most):
            try:
                result = self._waiting.popleft().result()
            except BaseException:
                self._waiting.clear()
                raise
            self._deliver(result)
