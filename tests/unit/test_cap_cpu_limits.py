"""The memory cap on the CPU beside the limits that a script sets for its own process."""

import json
import subprocess
import sys

import pytest

from harness.device.cpu.heap import open_heap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        open_heap() is None, reason="no readable malloc: the product offers no cap here either"
    ),
]

GIB = 2**30

# Limits hold for the whole process, and a hard one can never be raised again.
_CHILD = """
import json, resource
from harness.device.cpu.device import CpuDevice

GIB, INFINITY = 2**30, resource.RLIM_INFINITY
device = CpuDevice.open()
device.begin_memory()
limits = []

def set_limits(soft, hard=INFINITY):
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

def note():
    limits.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
"""


def limits_of(script: str) -> list[int]:
    """The soft limits on data that a process noted, -1 for none."""
    text = f"{_CHILD}\n{script}\nprint(json.dumps(limits))"
    child = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=90)
    assert child.returncode == 0, child.stderr
    limits: list[int] = json.loads(child.stdout)
    return limits


def test_without_a_cap_nothing_is_lifted() -> None:
    assert limits_of("set_limits(GIB, GIB); device.lift_cap_for_recovery(); note()") == [GIB]


def test_a_lifted_cap_leaves_the_limit_that_was_in_effect_before_it() -> None:
    script = """
set_limits(4 * GIB)
for _ in range(2):
    device.cap_memory(GIB)
    device.cap_memory(GIB)
    note()
    device.lift_cap_for_recovery()
    note()
"""
    capped, lifted, again, lifted_again = limits_of(script)
    assert GIB < capped < 2 * GIB
    assert GIB < again < 2 * GIB
    assert lifted == lifted_again == 4 * GIB


def test_a_limit_that_the_script_sets_under_a_cap_stays() -> None:
    script = "device.cap_memory(GIB); set_limits(3 * GIB); device.lift_cap_for_recovery(); note()"
    assert limits_of(script) == [3 * GIB]


def test_a_cap_never_exceeds_the_limits_of_the_process() -> None:
    script = """
set_limits(2 * GIB, 3 * GIB)
device.cap_memory(8 * GIB)
note()
device.cap_memory(None)
note()
"""
    assert limits_of(script) == [2 * GIB, 2 * GIB]
