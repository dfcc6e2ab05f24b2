"""A command and a worker of a sweep don't look for garbage in what they import; a user's own program is left alone."""

import subprocess
import sys

import pytest

SAID = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 1000))  # runs last
import {module}
{more}
"""


@pytest.mark.parametrize(
    ("module", "more", "spared"),
    [
        ("identcli.cli.app", "", True),
        ("identcli.runs.process", "identcli.runs.process.spare_the_collector()", True),
        ("identcli.runs.point", "", False),  # a launcher's worker imports it; its first point sets it
        ("identcli.collectors", "", False),
    ],
)
def test_the_collector_is_spared_where_the_process_is_ours(module, more, spared):
    program = [sys.executable, "-c", SAID.format(module=module, more=more)]
    threshold, frozen = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert (threshold == "10000", frozen == "True") == (spared, spared)
