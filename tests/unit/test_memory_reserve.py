"""The reserve for the report on an out-of-memory error, under a limit of the process."""

import json
import subprocess
import sys

import pytest

from harness.device.cpu.heap import open_heap
from harness.device.host.reserve import RESERVE_BYTES, Reserve
from harness.device.protocol import AllocatorReading
from harness.records.memory import ProcessLimit

MIB = 2**20

# Limits hold for the whole process, and a hard one can never be raised again.
_CHILD = """
import json, resource
from harness.device.cpu.device import CpuDevice
from harness.device.host.rss import status_bytes

MIB = 2**20
device = CpuDevice.open()
figures = []

def limit_to(more_mib):
    limit = status_bytes("VmData") + more_mib * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

def fill():
    kept = []
    for size in (16 * MIB, MIB, MIB // 4):
        try:
            while True:
                kept.append(bytearray(size))
        except MemoryError:
            pass
    return kept

def note():
    limit = device.read_allocator().process_limit
    figures.append([limit.limit_bytes, limit.used_bytes, limit.reserve_bytes])
"""


def figures_of(script: str) -> list[list[int]]:
    """Return what a process noted: limit, used, and reserve in bytes."""
    text = f"{_CHILD}\n{script}\nprint(json.dumps(figures))"
    child = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=90)
    assert child.returncode == 0, child.stderr
    figures: list[list[int]] = json.loads(child.stdout)
    return figures


needs_malloc = pytest.mark.skipif(open_heap() is None, reason="no limit can be enforced here")


@pytest.mark.slow
@needs_malloc
def test_at_an_error_the_report_has_memory_although_the_limit_stays() -> None:
    script = """
limit_to(300)
device.begin_memory()
note()
kept = fill()
device.lift_cap_for_recovery()
report = [bytearray(MIB) for _ in range(6)]
note()
"""
    held, released = figures_of(script)
    assert held[2] == RESERVE_BYTES
    # What the report uses of the reserve shows where it is; the rest still counts as the reserve.
    limit_bytes, used_bytes, reserve_bytes = released
    assert limit_bytes == held[0]
    assert 0 < reserve_bytes <= 3 * MIB
    assert limit_bytes - MIB < used_bytes <= limit_bytes


@pytest.mark.long
@needs_malloc
def test_a_limit_that_the_script_sets_later_has_a_reserve_from_the_next_reading_on() -> None:
    script = """
device.begin_memory()
limit_to(300)
note()
note()
device.lift_cap_for_recovery()
note()
device.cap_memory(None)
note()
note()
"""
    before, after, released, renewed, again = figures_of(script)
    assert [before[2], after[2], released[2], renewed[2], again[2]] == [
        0,
        *[RESERVE_BYTES] * 2,
        0,
        RESERVE_BYTES,
    ]
    # A released reserve still counts: the run did not have it.
    assert abs(after[1] - before[1] - RESERVE_BYTES) < MIB
    assert abs(after[1] - released[1]) < MIB


@pytest.mark.slow
@needs_malloc
@pytest.mark.long
def test_a_run_with_a_cap_or_with_little_left_has_no_reserve() -> None:
    script = """
device.begin_memory()
limit_to(100)
note()
note()
"""
    assert [figures[2] for figures in figures_of(script)] == [0, 0]
    script = """
device.begin_memory()
device.cap_memory(512 * MIB)
resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
note()
note()
"""
    assert [figures[2] for figures in figures_of(script)] == [0, 0]


def test_a_reserve_that_is_taken_is_no_growth_of_the_process() -> None:
    before, after = (
        AllocatorReading.unknown()._replace(process_limit=ProcessLimit("ulimit -d", 600, used, 200, reserve))
        for used, reserve in ((300, 0), (308, 8))
    )
    assert before.data_outside_bytes(40) == after.data_outside_bytes(40) == -340
    assert after.data_outside_bytes(None) is None
    assert AllocatorReading.unknown().data_outside_bytes(40) is None


def test_a_reserve_is_held_once_until_its_release_and_again_when_renewed() -> None:
    reserve = Reserve()
    reserve.release()
    assert not reserve.is_released
    for _ in range(2):
        reserve.hold(2**40)
    assert reserve.held_bytes == RESERVE_BYTES
    reserve.release()
    reserve.hold(2**40)
    assert (reserve.held_bytes, reserve.is_released) == (0, True)
    reserve.renew()
    reserve.hold(2**40)
    assert (reserve.held_bytes, reserve.is_released) == (RESERVE_BYTES, False)
    reserve.release()
