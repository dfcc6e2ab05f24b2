"""Memory that a step on a CPU frees is there for the next step, still mapped.

The C library of Linux gives freed memory back to the system, large blocks at once and the rest when enough is free at
the end of the heap. Each step then takes a page fault for every 4 kB that it touches anew: some 1,500 in a step of the
demo, a fifth of the time at the paper's sizes. So the library is told to keep what is freed, and a batch passes through
the model in parts that need no block too large for that.
"""

import ctypes
import math
import sys

import torch

LARGEST_BLOCK = 32 << 20  # bytes; the largest that the C library agrees to keep
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


def keep_freed_memory() -> None:
    """From now on, in the whole process; nothing where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def rows_at_a_time(device: torch.device, batch_size: int, floats_a_row: int) -> int | None:
    """On a CPU: equal parts of the batch whose largest activation (so many floats a row) is no larger block than that.

    None, all at once, on any other device.
    """
    if device.type != "cpu":
        return None
    parts = math.ceil(batch_size / max(1, LARGEST_BLOCK // (4 * floats_a_row)))
    return math.ceil(batch_size / parts)
