import time
from types import SimpleNamespace

import pytest

from harness.device.cpu.heap import Heap, HeapMeter, heap_bytes, in_use, open_heap

MIB = 1 << 20


class ScriptedHeap:
    """A heap whose figures and whose slowness the test sets."""

    def __init__(self) -> None:
        self.used = 0
        self.cost_ns = 300
        self.now_ns = 0
        self.spent_ns = 0
        self.interrupted_ns = 0
        self.calls = 0
        self.heap = Heap(self.info, lambda padding: 0)
        self.meter = HeapMeter(self.heap, lambda: self.spent_ns)

    def info(self) -> SimpleNamespace:
        self.calls += 1
        self.now_ns += self.cost_ns + self.interrupted_ns
        self.spent_ns += self.cost_ns
        return SimpleNamespace(arena=0, uordblks=0, hblkhd=self.used)

    def read(self) -> tuple[int | None, int | None]:
        return self.meter.read(self.now_ns)

    def next_check(self) -> None:
        self.now_ns += 10_000_000


@pytest.fixture
def scripted() -> ScriptedHeap:
    return ScriptedHeap()


def test_allocated_counts_from_the_level(scripted: ScriptedHeap) -> None:
    scripted.used = 10 * MIB
    scripted.meter.begin()
    scripted.used = 13 * MIB
    assert scripted.read() == (3 * MIB, 3 * MIB)


def test_what_lies_below_the_level_reads_as_zero(scripted: ScriptedHeap) -> None:
    scripted.used = 10 * MIB
    scripted.meter.begin()
    scripted.used = 9 * MIB
    assert scripted.read() == (0, 0)


def test_the_peak_is_the_highest_noted_in_the_step(scripted: ScriptedHeap) -> None:
    for used in (2, 7, 5):
        scripted.used = used * MIB
        scripted.meter.note()
    scripted.used = 1 * MIB
    assert scripted.read() == (1 * MIB, 7 * MIB)


def test_a_reading_starts_a_new_peak(scripted: ScriptedHeap) -> None:
    scripted.used = 7 * MIB
    scripted.meter.note()
    scripted.meter.sample()
    scripted.used = 1 * MIB
    scripted.read()
    assert scripted.read() == (1 * MIB, 1 * MIB)


def test_the_peak_includes_what_the_sampler_saw(scripted: ScriptedHeap) -> None:
    scripted.used = 9 * MIB
    scripted.meter.sample()
    scripted.used = 4 * MIB
    scripted.meter.sample()
    assert scripted.read() == (4 * MIB, 9 * MIB)


def test_a_sample_begun_before_the_reading_stays_out_of_the_next_step() -> None:
    used = [9 * MIB, 1 * MIB, 1 * MIB]
    meter: HeapMeter

    def info() -> SimpleNamespace:
        now = used.pop(0)
        if now == 9 * MIB:
            meter.read(0)  # the training thread ends its step while the sampler looks
        return SimpleNamespace(arena=0, uordblks=0, hblkhd=now)

    meter = HeapMeter(Heap(info, lambda padding: 0), lambda: 0)
    meter.sample()
    assert meter.read(0) == (1 * MIB, 1 * MIB)


def make_slow(scripted: ScriptedHeap) -> None:
    scripted.cost_ns = 80_000
    for _ in range(3):
        scripted.next_check()
        scripted.read()


def test_slow_calls_are_made_rarely(scripted: ScriptedHeap) -> None:
    make_slow(scripted)
    before = scripted.calls
    for _ in range(100):
        scripted.meter.note()
        scripted.meter.sample()
        scripted.now_ns += 100_000
    assert scripted.calls == before
    assert scripted.read() == (None, None)


def test_while_slow_a_reading_still_comes_now_and_then(scripted: ScriptedHeap) -> None:
    make_slow(scripted)
    scripted.used = 5 * MIB
    scripted.now_ns += 80_000 * 200
    assert scripted.read() == (5 * MIB, None)
    assert scripted.read() == (None, None)


def test_calls_that_were_interrupted_are_not_slow(scripted: ScriptedHeap) -> None:
    scripted.interrupted_ns = 5_000_000  # Another process has the processor in the middle of the call.
    for _ in range(10):
        scripted.next_check()
        assert scripted.read() != (None, None)


def test_one_slow_call_is_not_taken_for_slowness(scripted: ScriptedHeap) -> None:
    for cost_ns in (80_000, 300, 80_000, 300):
        scripted.cost_ns = cost_ns
        scripted.next_check()
        assert scripted.read() != (None, None)


def test_a_slow_call_is_cheap_beside_a_long_step(scripted: ScriptedHeap) -> None:
    scripted.cost_ns = 80_000
    for _ in range(10):
        scripted.used = 7 * MIB
        scripted.meter.note()
        scripted.used = 1 * MIB
        scripted.now_ns += 100_000_000
        assert scripted.read() == (1 * MIB, 7 * MIB)


def test_when_calls_are_fast_again_every_step_is_read(scripted: ScriptedHeap) -> None:
    make_slow(scripted)
    scripted.cost_ns = 300
    scripted.now_ns += 80_000 * 200
    scripted.read()
    assert scripted.read() != (None, None)


def test_the_process_heap_sees_a_block_and_its_end() -> None:
    heap = open_heap()
    assert heap is not None
    before = in_use(heap.info())
    block = bytearray(32 * MIB)
    grown = in_use(heap.info()) - before
    del block
    assert 32 * MIB <= grown < 33 * MIB
    assert heap_bytes(heap.info()) >= in_use(heap.info())


@pytest.mark.slow
def test_many_free_chunks_make_the_real_meter_back_off() -> None:
    heap = open_heap()
    assert heap is not None
    meter = HeapMeter(heap)
    chunks = [bytes(2000) for _ in range(200_000)]
    del chunks[::2]
    for _ in range(4):
        time.sleep(0.011)  # the meter weighs a call every 10 ms
        assert meter.read(time.monotonic_ns()) != (None, None)
    assert meter.read(time.monotonic_ns()) == (None, None)
