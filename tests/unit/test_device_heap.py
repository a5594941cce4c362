import ctypes
from types import SimpleNamespace

import pytest

from harness.device.cpu.heap import (
    Heap,
    HeapMeter,
    Mallinfo2,
    bytes_in_holes,
    heap_bytes,
    in_use,
    large_hole_bytes,
    open_heap,
)

MIB = 1 << 20


class ScriptedHeap:
    """A heap with the figures that a test sets."""

    def __init__(self) -> None:
        self.used = 0
        self.meter = HeapMeter(Heap(self.info, lambda padding: 0))

    def info(self) -> SimpleNamespace:
        return SimpleNamespace(arena=0, uordblks=0, hblkhd=self.used)

    def read(self) -> tuple[int | None, int | None]:
        return self.meter.read()


@pytest.fixture
def scripted() -> ScriptedHeap:
    return ScriptedHeap()


def test_allocated_counts_from_the_level(scripted: ScriptedHeap) -> None:
    scripted.used = 10 * MIB
    scripted.meter.begin()
    scripted.used = 13 * MIB
    assert scripted.read() == (3 * MIB, 3 * MIB)


def test_memory_below_the_level_is_unknown(scripted: ScriptedHeap) -> None:
    scripted.used = 10 * MIB
    scripted.meter.begin()
    scripted.used = 9 * MIB
    assert scripted.read() == (None, None)


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
            meter.read()  # the training thread ends its step while the sampler looks
        return SimpleNamespace(arena=0, uordblks=0, hblkhd=now)

    meter = HeapMeter(Heap(info, lambda padding: 0))
    meter.sample()
    assert meter.read() == (1 * MIB, 1 * MIB)


def test_the_process_heap_sees_a_block_and_its_end() -> None:
    heap = open_heap()
    assert heap is not None
    before = in_use(heap.info())
    block = bytearray(32 * MIB)
    grown = in_use(heap.info()) - before
    del block
    assert 32 * MIB <= grown < 33 * MIB
    assert heap_bytes(heap.info()) >= in_use(heap.info())


class OtherMalloc:
    """A C library in which other threads free memory during the first probes."""

    def __init__(self, disturbed: int) -> None:
        self._sizes = [size for _ in range(disturbed) for size in (8 << 20, 4 << 20)] + [8 << 20, 9 << 20] * 9
        self.mallinfo2 = lambda: Mallinfo2(uordblks=self._sizes.pop(0))
        self.malloc_trim = self.malloc = lambda _size: 1
        self.free = lambda _block: None


@pytest.mark.parametrize(("disturbed", "is_found"), [(0, True), (2, True), (9, False)])
def test_a_heap_is_found_also_where_other_threads_free_memory(
    monkeypatch: pytest.MonkeyPatch, disturbed: int, is_found: bool
) -> None:
    monkeypatch.setattr(ctypes, "PyDLL", lambda _name: OtherMalloc(disturbed))
    assert (open_heap() is not None) is is_found


def test_a_new_peak_window_forgets_what_was_read_in_the_one_before(scripted: ScriptedHeap) -> None:
    scripted.used = 1 * MIB
    scripted.meter.begin()
    assert scripted.meter.begin_peak() is None
    scripted.used = 9 * MIB
    scripted.meter.note()
    scripted.used = 12 * MIB
    scripted.meter.sample()
    scripted.used = 3 * MIB
    assert scripted.meter.begin_peak() == 11 * MIB
    assert scripted.read() == (2 * MIB, 2 * MIB)


@pytest.mark.skipif(open_heap() is None, reason="malloc cannot be read")
def test_freed_blocks_are_holes_of_their_size_and_none_of_a_size_beyond_the_heap() -> None:
    blocks = [(bytearray(40_000), bytearray(2_000)) for _ in range(2_000)]
    live = [small for _, small in blocks]
    before_bytes = large_hole_bytes(39_000)
    del blocks
    after_bytes = large_hole_bytes(39_000)
    assert before_bytes is not None
    assert after_bytes is not None
    assert after_bytes - before_bytes >= 0.9 * len(live) * 40_000
    assert large_hole_bytes(1 << 40) == 0


# A list of tensors was freed, beside five holes of 0.5 to 2 MiB.
FREED_LIST = b"""<heap nr="0">
  <size from="80033" to="80033" total="80033" count="1"/>
  <size from="524497" to="616581393" total="623922550" count="6"/>
</heap>"""


@pytest.mark.parametrize(
    ("least_bytes", "expected_bytes"),
    [
        (4 * MIB, 616_581_393),  # The largest one alone is more than what five others leave.
        (524_400, 623_922_550),
        (524_500, 623_922_550 - 5 * 524_500),
        (616_581_394, 0),
    ],
)
def test_the_largest_hole_of_a_bin_counts_beside_smaller_ones(least_bytes: int, expected_bytes: int) -> None:
    assert bytes_in_holes(FREED_LIST, least_bytes) == expected_bytes


def test_holes_without_bins_are_unknown() -> None:
    assert bytes_in_holes(b"", 1) is None
