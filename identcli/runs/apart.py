"""A function in a process of its own, forked off this one: whatever ends that process costs nobody else.

Python and torch are imported already when the process begins, so it begins in milliseconds. It must be forked before
this process has done any tensor work: neither OpenMP's threads nor CUDA live on in a child. Where forking is not to be
trusted (macOS, Windows) the function runs in this process, and a kill costs this process.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 30.0  # what Slurm gives before it kills


class Ended(Exception):
    """The process ended before it had an answer; `pid` was its number."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"its process ended with status {status}"
        super().__init__(f"{how}: out of memory?" if status == -signal.SIGKILL else how)


def apart(function: Callable[[], Any], stop: Callable[[], bool] = lambda: False) -> Any:
    """What `function` returns (something that JSON can hold), computed in a child. Ended when the child ends without.

    The child gets one SIGTERM, and time to react, when `stop()` becomes true, when this process gets one, and when this
    process is gone. It has a session of its own: a Ctrl-C at the terminal doesn't reach it.
    """
    if sys.platform != "linux":
        return function()
    answer, to_answer = os.pipe()
    alive, to_be_alive = os.pipe()  # the child reads an end of file here when this process is gone
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(answer)
        os.close(to_be_alive)
        _in_the_child(function, to_answer, alive)
    os.close(to_answer)
    os.close(alive)
    try:
        return _wait(child, answer, stop)
    finally:
        os.close(answer)
        os.close(to_be_alive)


def _in_the_child(function: Callable[[], Any], to_answer: int, alive: int) -> None:
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # a cluster's: the parent answers them
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=_end_with_the_parent, args=(alive,), daemon=True).start()
        content = json.dumps(function()).encode()
        with contextlib.suppress(BrokenPipeError), open(to_answer, "wb") as pipe:
            pipe.write(content)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what the parent registered to do at its exit isn't this process's to do


def _end_with_the_parent(alive: int) -> None:
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait(child: int, answer: int, stop: Callable[[], bool]) -> Any:
    told, content = False, b""
    try:
        with _told_to_end() as came:
            while True:
                if select.select([answer], [], [], SECONDS_BETWEEN_LOOKS)[0]:
                    piece = os.read(answer, 65536)
                    if not piece:
                        break
                    content += piece
                if not told and (came() or stop()):
                    told = True
                    os.kill(child, signal.SIGTERM)
    except BaseException:
        _end(child)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code or not content:
        raise Ended(child, code)
    return json.loads(content)


def _end(child: int) -> None:
    """Not to leave it behind: politely, then at once."""
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_END
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        time.sleep(0.02)


@contextmanager
def _told_to_end() -> Iterator[Callable[[], bool]]:
    """While inside, a SIGTERM makes the answer true, beside what it does already; it doesn't end this process.

    A main thread alone can take signals.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if callable(before):
            before(number, frame)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
