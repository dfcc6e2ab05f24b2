import os
import subprocess
import sys

import pytest
import torch

from identcli.training.memory import LARGEST_BLOCK, rows_at_a_time
from identcli.training.passes import parts_of
from identcli.training.precision import Precision


def test_a_batch_passes_in_equal_parts_that_stay_below_the_largest_block():
    cpu, paper = torch.device("cpu"), 4 * 384 * 256
    assert rows_at_a_time(cpu, 64, paper) == 16
    assert 4 * paper * 16 <= LARGEST_BLOCK < 4 * paper * 22
    assert rows_at_a_time(cpu, 12, 4 * 384 * 64) == 12
    assert rows_at_a_time(cpu, 5, LARGEST_BLOCK) == 1
    assert rows_at_a_time(torch.device("cuda"), 64, paper) is None
    rows = torch.arange(5)
    parts = parts_of(rows, rows + 1, Precision(cpu, rows_at_a_time=2))
    assert [(some.tolist(), of_some.tolist(), share) for some, of_some, share in parts] == [
        ([0, 1], [1, 2], 0.4),
        ([2, 3], [3, 4], 0.4),
        ([4], [5], 0.2),
    ]


FAULTS = """
import resource, sys, torch
from identcli.training.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    keep_freed_memory()

def step():
    blocks = [torch.ones(3 << 20) for _ in range(4)]  # of 12 MiB

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # a block that once finds its place taken by something small gets a new one: one of 80
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux gives memory back")
def test_what_a_step_frees_is_there_for_the_next():
    """A fault for every page of 4 kB in every step, unless the memory is kept.

    Left alone, the library moves its threshold once it has seen such blocks, and then keeps them or not by how the
    heap happens to lie: so that both sides start from a threshold that stands still, until `mallopt` sets another.
    """
    faults = {}
    environment = {**os.environ, "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={128 << 10}"}
    for word in ("keep", "plain"):
        command = [sys.executable, "-c", FAULTS, word]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        faults[word] = int(done.stdout)
    if faults["plain"] < 1000:
        pytest.skip("another C library, or pages so large that few faults are left")
    assert faults["keep"] < faults["plain"] / 20, faults
