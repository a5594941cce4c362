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


@pytest.mark.long
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


@pytest.mark.long
def test_a_limit_that_the_script_sets_under_a_cap_stays() -> None:
    script = "device.cap_memory(GIB); set_limits(3 * GIB); device.lift_cap_for_recovery(); note()"
    assert limits_of(script) == [3 * GIB]


@pytest.mark.long
def test_a_cap_never_exceeds_the_limits_of_the_process() -> None:
    script = """
set_limits(2 * GIB, 3 * GIB)
device.cap_memory(8 * GIB)
note()
device.cap_memory(None)
note()
"""
    assert limits_of(script) == [2 * GIB, 2 * GIB]


_READ = """
def note_process_limit():
    limit = device.read_allocator().process_limit
    limits.append(-1 if limit is None else limit.limit_bytes)
"""


@pytest.mark.long
def test_a_limit_is_read_when_it_counts_and_a_cap_is_none() -> None:
    script = f"""{_READ}
note_process_limit()
set_limits(4 * GIB)
note_process_limit()
device.cap_memory(GIB)
note_process_limit()
set_limits(INFINITY)
note_process_limit()
"""
    assert limits_of(script) == [-1, 4 * GIB, 4 * GIB, -1]


@pytest.mark.long
def test_of_two_limits_the_one_that_leaves_less_is_read() -> None:
    script = f"""{_READ}
set_limits(64 * GIB)
resource.setrlimit(resource.RLIMIT_AS, (60 * GIB, INFINITY))
note_process_limit()
limit = device.read_allocator().process_limit
limits.append(int(limit.option == "ulimit -v" and 0 < limit.before_bytes <= limit.used_bytes))
"""
    assert limits_of(script) == [60 * GIB, 1]


@pytest.mark.long
def test_address_space_that_malloc_has_set_aside_for_a_thread_is_available() -> None:
    script = """
import threading
resource.setrlimit(resource.RLIMIT_AS, (60 * GIB, INFINITY))
set_aside = device.read_allocator().process_limit.set_aside_bytes

def allocate():
    kept = [bytes(1_000) for _ in range(1_000)]
    limits.append(device.read_allocator().process_limit.set_aside_bytes - set_aside)

thread = threading.Thread(target=allocate)
thread.start()
thread.join()
reading = device.read_allocator()
limits.append(reading.limit_left_bytes - reading.process_limit.left_bytes - set_aside)
"""
    while_it_runs, afterwards = limits_of(script)
    assert 60 << 20 < while_it_runs < 64 << 20
    assert 60 << 20 < afterwards < 64 << 20


@pytest.mark.long
def test_the_memory_left_to_a_leak_is_that_under_the_nearer_of_cap_and_limit() -> None:
    script = """
def note_left():
    limits.append(device.read_allocator().limit_left_bytes)

set_limits(4 * GIB)
note_left()
device.cap_memory(GIB)
note_left()
device.cap_memory(None)
note_left()
"""
    limited, capped, again = limits_of(script)
    assert GIB < limited < 4 * GIB
    assert 0 < capped < GIB + (1 << 20)  # Pages may have been freed since the cap was set.
    assert GIB < again < 4 * GIB


@pytest.mark.long
def test_before_the_run_begins_its_memory_may_reach_what_is_left_now() -> None:
    script = """
set_limits(4 * GIB)
kept = bytearray(GIB)
reading = CpuDevice.open().read_allocator()
limits += [reading.most_within_process_limit_bytes, reading.process_limit.left_bytes]
"""
    most, left = limits_of(script)
    assert 0 <= most - left < GIB // 10
