"""Ctrl-C and polite kills: the first lets the step end, so that a checkpoint of a whole state can be written.

A launcher or a cluster may pass on the signal that the terminal has sent already: within a second it is the same one.
"""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_S = 1.0

logger = logging.getLogger("ident")


class Interruption:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._first = 0.0

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._first > SAME_S:
            raise KeyboardInterrupt
        if self.asked:
            return
        self.asked, self._first = True, time.monotonic()
        logger.info("asked to stop by %s: ending this step; asked again: at once", signal.Signals(number).name)


@contextmanager
def interruption() -> Iterator[Interruption]:
    """While inside, SIGINT and SIGTERM set `asked`; a second one raises KeyboardInterrupt. For the main thread only."""
    asked = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
