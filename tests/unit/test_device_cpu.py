import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
import torch

from harness.device.allocated import allocated_bytes
from harness.device.cap import validate_cap
from harness.device.cpu.device import CpuDevice
from harness.device.cpu.heap import open_heap
from harness.device.protocol import AllocatorReading
from harness.errors import DeviceError, SettingError
from harness.records.run import AmpMode, DeviceKind

MIB = 1 << 20


@pytest.fixture
def device() -> CpuDevice:
    device = CpuDevice.open()
    device.begin_memory()
    return device


def test_a_tensor_is_counted_to_within_a_mebibyte(device: CpuDevice) -> None:
    # Other objects of the process may be freed meanwhile, and what is below the baseline is unknown.
    held = torch.zeros(2 * MIB, dtype=torch.uint8)
    before = device.read_memory().allocated_bytes
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
    after = device.read_memory().allocated_bytes
    assert before is not None
    assert after is not None
    assert abs(after - before - tensor.nbytes) < MIB
    assert abs(before - held.nbytes) < MIB


def test_what_sqlite_has_in_use_is_not_allocated(device: CpuDevice) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE lines (text TEXT)")
        connection.executemany("INSERT INTO lines VALUES (?)", (("x" * 1000,) for _ in range(8_000)))
        tensor = torch.zeros(4 * MIB, dtype=torch.uint8)
        read, listed = device.read_memory().allocated_bytes, allocated_bytes(device.read_allocator())
    assert read is not None
    assert listed is not None
    assert abs(read - tensor.nbytes) < MIB
    assert abs(listed - tensor.nbytes) < MIB
    after = device.read_memory().allocated_bytes
    assert after is not None
    assert abs(after - tensor.nbytes) < MIB


def test_the_peak_shows_what_a_phase_held_and_gave_back(device: CpuDevice) -> None:
    held = torch.zeros(2 * MIB, dtype=torch.uint8)
    device.read_memory()
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
    device.note_peak()
    del tensor
    reading = device.read_memory()
    assert held.nbytes == 2 * MIB
    assert reading.allocated_bytes is not None
    assert reading.peak_allocated_bytes is not None
    assert reading.peak_allocated_bytes - reading.allocated_bytes >= 63 * MIB
    following = device.read_memory()
    assert following.peak_allocated_bytes is not None
    assert following.peak_allocated_bytes < reading.peak_allocated_bytes - 60 * MIB


def test_the_sampler_thread_finds_a_peak_between_two_phase_ends(device: CpuDevice) -> None:
    device.read_memory()
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
    sampler = threading.Thread(target=device.sample_peak)
    sampler.start()
    sampler.join()
    del tensor
    reading = device.read_memory()
    assert reading.peak_allocated_bytes is not None
    # Other threads may give back a little of what lay below the level.
    assert reading.peak_allocated_bytes >= 64 * MIB - 64 * 1024


def test_reserved_is_the_rss_and_nothing_is_made_up(device: CpuDevice) -> None:
    reading = device.read_memory()
    assert reading.reserved_bytes is not None
    assert reading.reserved_bytes > 50 * MIB
    assert device.rss_bytes() == pytest.approx(reading.reserved_bytes, rel=0.1)
    assert reading.active_bytes is None
    assert reading.peak_reserved_bytes is None
    assert reading.alloc_retries is None
    assert reading.ooms is None


def test_what_the_heap_holds_is_told_with_what_lies_free_in_it(device: CpuDevice) -> None:
    before = device.read_allocator()
    tensors = [torch.zeros(33 * MIB, dtype=torch.uint8) for _ in range(2)]
    after = device.read_allocator()
    del tensors
    assert before.reserved_bytes is not None
    assert before.segments is not None
    assert after.reserved_bytes is not None
    assert 66 * MIB <= after.reserved_bytes - before.reserved_bytes < 70 * MIB
    assert after.segments == before.segments + 2
    assert (after.split_free_bytes, after.largest_free_bytes, after.live_blocks) == (None, None, None)
    assert CpuDevice(None).read_allocator() == AllocatorReading.unknown()


_HOLES_CHILD = """
import torch
from harness.device.cpu.device import CpuDevice

device = CpuDevice.open()
small = [torch.zeros(1000) for _ in range(40_000)]
del small[::2]
device.begin_memory()
print(device.read_allocator().free_bytes, device.read_allocator().reserved_bytes)
del small[::2]
print(device.read_allocator().free_bytes)
"""


@pytest.mark.long
def test_holes_from_before_the_run_do_not_count_as_its_own() -> None:
    script = [sys.executable, "-c", _HOLES_CHILD]
    child = subprocess.run(script, capture_output=True, text=True, timeout=90, check=True)
    free, reserved, grown = map(int, child.stdout.split())
    assert free < MIB
    assert reserved < MIB
    assert grown > 10 * MIB


def test_without_a_readable_malloc_only_the_rss_is_told() -> None:
    device = CpuDevice(None)
    device.begin_memory()
    device.note_peak()
    device.sample_peak()
    reading = device.read_memory()
    assert reading.allocated_bytes is None
    assert reading.peak_allocated_bytes is None
    assert reading.reserved_bytes is not None
    assert (device.facts.can_trim, device.facts.can_cap) == (False, False)
    device.empty_cache()
    device.cap_memory(None)
    device.lift_cap_for_recovery()
    with pytest.raises(DeviceError, match="leave memory_cap_gib empty"):
        device.cap_memory(1 << 30)


def test_the_cpu_offers_bf16_and_no_fp16(device: CpuDevice) -> None:
    assert device.facts.kind is DeviceKind.CPU
    assert device.facts.amp_modes == (AmpMode.OFF, AmpMode.BF16)
    assert device.facts.torch_name == "cpu"
    assert device.clock() is None


def test_a_cap_without_headroom_is_refused_with_the_smallest_that_works(device: CpuDevice) -> None:
    with pytest.raises(SettingError, match=r"smallest cap that works now is (\d+\.\d{3})") as refusal:
        device.cap_memory(1 * MIB)
    assert refusal.value.setting == "memory_cap_gib"
    smallest = float(str(refusal.value).rsplit(" ", 1)[1].rstrip("."))
    try:
        device.cap_memory(int((smallest + 0.01) * 2**30))
    finally:
        device.cap_memory(None)


def test_a_refused_cap_says_what_it_must_leave_beyond_the_memory_in_use() -> None:
    with pytest.raises(
        SettingError, match=r"0\.001 GiB, a cap must leave 128 MiB .* libraries, .* is 0\.126"
    ):
        validate_cap(100 * MIB, MIB, 129 * MIB, "Python and its libraries")


def test_a_refused_cap_suggests_none_below_what_the_heap_has() -> None:
    """Such a cap is accepted after an out-of-memory error alone; the next allocation may fail under it."""
    with pytest.raises(SettingError, match=r"already uses 0\.391 GiB, and the smallest .* is 0\.391"):
        validate_cap(300 * MIB, reserved_bytes=400 * MIB, smallest_bytes=336 * MIB)
    validate_cap(340 * MIB, reserved_bytes=400 * MIB, smallest_bytes=336 * MIB)


CAPPED_CHILD = """
import json, torch
from harness.device.cpu.device import CpuDevice

MIB = 1 << 20
device = CpuDevice.open()
device.begin_memory()
layer = torch.nn.Linear(512, 512)
for _ in range(2):
    layer(torch.randn(256, 512)).sum().backward()
device.cap_memory(300 * MIB)
outcomes = []
for _ in range(5):
    blocks = []
    try:
        while True:
            blocks.append(torch.ones(4 * MIB))
    except RuntimeError as error:
        message = str(error)
    device.lift_cap_for_recovery()
    outcomes.append((message, device.read_memory().allocated_bytes))
    del blocks
    layer(torch.randn(256, 512)).sum().backward()
    device.cap_memory(300 * MIB)
device.cap_memory(None)
free = torch.ones(128 * MIB).nbytes
print(json.dumps({"outcomes": outcomes, "free": free}))
"""


def run_child(script: str) -> dict[str, object]:
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90)
    assert child.returncode == 0, child.stderr
    result: dict[str, object] = json.loads(child.stdout)
    return result


@pytest.mark.long
@pytest.mark.skipif(open_heap() is None, reason="no readable malloc: the product offers no cap here either")
def test_a_capped_process_runs_out_of_memory_cleanly_and_goes_on() -> None:
    result = run_child(CAPPED_CHILD)
    outcomes = result["outcomes"]
    assert isinstance(outcomes, list)
    assert len(outcomes) == 5
    for message, held_bytes in outcomes:
        assert "DefaultCPUAllocator: can't allocate memory" in message
        assert 200 * MIB < held_bytes <= 300 * MIB
    assert result["free"] == 512 * MIB


NO_GLIBC_CHILD = """
import ctypes, json
class Bare:
    def __init__(self, *arguments): pass
    def __getattr__(self, name): raise AttributeError(name)
ctypes.PyDLL = Bare
from harness.device.cpu.heap import open_heap
from harness.device.protocol import AllocatorReading
print(json.dumps({"heap": open_heap()}))
"""


def test_a_libc_without_mallinfo2_is_not_taken_for_one_that_holds_nothing() -> None:
    assert run_child(NO_GLIBC_CHILD) == {"heap": None}


ARENAS_CHILD = """
import ctypes, threading
from harness.device.cpu.device import CpuDevice

CpuDevice.open()
done = threading.Event()
ready = [threading.Event() for _ in range(6)]

def allocate(mine):
    block = bytearray(100_000)
    mine.set()
    done.wait()

for mine in ready:
    threading.Thread(target=allocate, args=(mine,)).start()
    mine.wait()
ctypes.CDLL(None).malloc_stats()
done.set()
"""


@pytest.mark.long
def test_threads_share_an_arena_so_that_readings_stay_cheap() -> None:
    child = subprocess.run([sys.executable, "-c", ARENAS_CHILD], capture_output=True, text=True, timeout=90)
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("Arena ") == 2


def test_what_trimming_gave_back_shows_in_the_very_next_reading() -> None:
    device = CpuDevice.open()
    if not device.facts.can_trim:
        pytest.skip("this malloc cannot be trimmed")
    pieces = [bytearray(64 * 1024) for _ in range(2_000)]
    anchor = bytearray(64 * 1024)
    live_bytes = device.read_memory().reserved_bytes
    del pieces
    device.empty_cache()
    left = device.read_memory().reserved_bytes
    assert live_bytes is not None
    assert left is not None
    assert live_bytes - left > 50 * 2**20
    assert len(anchor) == 64 * 1024
