"""A function in processes of its own, forked off this one: whatever ends them costs nobody else.

Python and torch are imported already when such a process begins, so it begins in milliseconds. It must be forked before
this process has done any tensor work: neither OpenMP's threads nor CUDA live on in a child. Where forking is not to be
trusted (macOS, Windows) the function runs in this process, and a kill costs this process.
"""

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from identcli.architecture.errors import UserError

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_NOTICE = 5.0  # in which a process finds out by itself that another one is gone
SECONDS_TO_END = 30.0  # what Slurm gives before it kills


class Ended(Exception):
    """There is no answer: the function raised, or a process was ended from outside.

    `pid`: of that process. `log`: the traceback, where the function raised. `wrong`: the lines of a UserError.
    `asked`: the process was told to end, and did so at once.
    """

    def __init__(self, reason: str, pid: int, *, log: str = "", wrong: Sequence[str] = (), asked: bool = False) -> None:
        super().__init__(reason)
        self.pid, self.log, self.wrong, self.asked = pid, log, list(wrong), asked


def apart(
    function: Callable[[], Any],
    stop: Callable[[], bool] = lambda: False,
    places: Sequence[Mapping[str, str]] = ({},),
) -> Any:
    """What `function` returns (something that JSON can hold), computed in a child. Ended when there is no answer.

    places: variables of the environment; a child for each of them, and the answer is that of the first. When one ends
    without an answer the others are ended too. A child gets one SIGTERM, and time to react, when `stop()` becomes
    true, when this process gets one, and when this process is gone. It has a session of its own: a Ctrl-C at the
    terminal doesn't reach it.
    """
    if sys.platform != "linux":
        if len(places) > 1:
            raise UserError(f"processes={len(places)}: only Linux can start them so; elsewhere torchrun does")
        return function()
    alive, to_be_alive = os.pipe()  # the children read an end of file here when this process is gone
    children: list[_Child] = []
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for place in places:
            answer, to_answer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(answer)
                os.close(to_be_alive)
                os.environ.update(place)
                _in_the_child(function, to_answer, alive)
            os.close(to_answer)
            which = f"process {len(children) + 1} of {len(places)}: " if len(places) > 1 else ""
            children.append(_Child(pid, answer, which))
        return _wait(children, stop)
    except BaseException:
        _end(children)
        raise
    finally:
        for descriptor in (alive, to_be_alive, *(child.answer for child in children)):
            os.close(descriptor)


@dataclass
class _Child:
    pid: int
    answer: int
    which: str
    content: bytes = field(default=b"", repr=False)
    status: int | None = None  # how it ended; None while it may still be there
    told: bool = False

    def is_over(self, options: int = os.WNOHANG) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, options)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def kill(self, number: int) -> None:
        """Only of a process that has not been waited for is the number surely its own."""
        if not self.is_over():
            os.kill(self.pid, number)

    def result(self) -> Any:
        """What the function returned. Ended when it didn't, or if the process was ended before."""
        self.is_over(0)
        status = self.status or 0
        if status or not self.content:
            killed = f"killed by {signal.Signals(-status).name}" if status < 0 else None
            how = killed or f"its process ended with status {status}"
            memory = ": out of memory?" if status == -signal.SIGKILL else ""
            raise Ended(self.which + how + memory, self.pid, asked=self.told and status == -signal.SIGTERM)
        said = json.loads(self.content)
        if "reason" in said:
            reason = said.pop("reason")
            raise Ended(reason if said["wrong"] else self.which + reason, self.pid, **said)
        return said["answer"]


def _in_the_child(function: Callable[[], Any], to_answer: int, alive: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # a cluster's: the parent answers them
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=_end_with_the_parent, args=(alive,), daemon=True).start()
        content = json.dumps(_said(function)).encode()
        with suppress(BrokenPipeError), open(to_answer, "wb") as pipe:
            pipe.write(content)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what the parent registered to do at its exit isn't this process's to do


def _said(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"answer": function()}
    except UserError as error:
        return {"reason": str(error), "wrong": getattr(error, "messages", None) or [str(error)]}
    except BaseException as failure:
        reason = f"{type(failure).__name__}: {failure}".strip()
        return {"reason": reason, "log": "".join(traceback.format_exception(failure)), "wrong": []}


def _end_with_the_parent(alive: int) -> None:
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait(children: Sequence[_Child], stop: Callable[[], bool]) -> Any:
    speaking = {child.answer: child for child in children}
    told = False
    with _told_to_end() as came:
        while speaking:
            for descriptor in select.select(list(speaking), [], [], SECONDS_BETWEEN_LOOKS)[0]:
                piece = os.read(descriptor, 65536)
                speaking[descriptor].content += piece
                if piece:
                    continue
                try:
                    speaking.pop(descriptor).result()
                except Ended:
                    _end(children, SECONDS_TO_NOTICE)
                    raise
            if not told and (came() or stop()):
                told = True
                for child in speaking.values():
                    child.told = True
                    child.kill(signal.SIGTERM)
        return children[0].result()


def _end(children: Collection[_Child], patience_s: float = 0.0) -> None:
    """Not to leave any behind: by themselves, then politely, then at once."""
    for seconds, number in ((patience_s, signal.SIGTERM), (SECONDS_TO_END, signal.SIGKILL)):
        deadline = time.monotonic() + seconds
        while not all(child.is_over() for child in children) and time.monotonic() < deadline:
            time.sleep(0.02)
        for child in children:
            child.kill(number)
    for child in children:
        child.is_over(0)


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
