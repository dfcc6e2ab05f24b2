"""The tasks that Slurm starts for one point of a sweep, on one node or several, and where their processes meet."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from identcli.store import atomic

SECONDS_TO_MEET = 600.0
SECONDS_BETWEEN_LOOKS = 0.5


def own_of_all() -> tuple[int, int]:
    """The number of this task and how many there are; (0, 1) unless submitit has started it in a job of Slurm."""
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
        return 0, 1
    return int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))


@contextmanager
def meeting(folder: Path, own: int, stop: Callable[[], bool]) -> Iterator[tuple[str, int] | None]:
    """Host and port at which the processes of all tasks meet; None if it was to stop before that was known.

    The first task chooses, and writes it into the run's folder, which all nodes see. TimeoutError for the others.
    """
    turn = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    file = folder / f"{atomic.TEMPORARY}meeting-{turn}"
    if own == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            host, port = socket.gethostname(), free.getsockname()[1]
        atomic.write_text(file, f"{host} {port}")
        try:
            yield host, port
        finally:
            file.unlink(missing_ok=True)
        return
    deadline = time.monotonic() + SECONDS_TO_MEET
    while not file.exists():
        if stop():
            yield None
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder.name}: the first task of this job has not said where to meet")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    host, port = file.read_text(encoding="utf-8").split()
    yield host, int(port)
