"""What holds for a whole process of Python. Nothing is imported here that the first line of a command doesn't need."""

import atexit
import gc
import os
from pathlib import Path


def spare_the_collector() -> None:
    """Don't look for garbage where there is none.

    typer and torch make a million objects at start, none of them garbage. Python would look through all of them dozens
    of times, for up to a second, and once more at the end: so it looks after every 10,000 new ones, not every 700, and
    at the end not at all. Called a second time it changes nothing.
    """
    gc.set_threshold(10_000)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def tune() -> None:
    """Choose how long torch's threads spin; they read it when torch is imported."""
    # torch's threads wait for one another spinning, up to milliseconds: right for a machine of one's own. Beside
    # one other busy process on two cores a step of the demo then took 270 to 1,940 ms, and 142 with a short spin; on
    # a quiet machine the short spin costs 7 %.
    if "OMP_WAIT_POLICY" not in os.environ and _others_run():
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _others_run() -> bool:
    """Whether another process is running on this machine at this moment, as far as Linux tells."""
    try:
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
    except (OSError, IndexError):
        return False
    return running.isdecimal() and int(running) > 1
