"""Test how often memory is looked at."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device.cpu.device import CpuDevice
from harness.records.run import MemoryReading
from harness.watch.memory import MOST_SHARE, OWN_NS, SHARED_NS, MemoryWatch
from tests.train_factories import a_device

MS = 1_000_000


class CountingDevice:
    """Stands in for a device: each reading is numbered."""

    reserves_rss = True

    def __init__(self, reading_ns: int = 0) -> None:
        self.notes = 0
        self.readings = self.peaks = 0
        self.reading_ns = reading_ns
        self.spent_ns = 0

    def note_peak(self) -> None:
        self.notes += 1
        self.spent_ns += self.reading_ns

    def begin_peak(self) -> int:
        self.peaks += 1
        return 7

    def read_memory(self) -> MemoryReading:
        self.readings += 1
        self.spent_ns += self.reading_ns
        return MemoryReading(self.readings, *(None,) * 7)

    def rss_bytes(self) -> int:
        return 42


def a_watch(device: Any) -> MemoryWatch:
    return MemoryWatch(device, cpu_ns=lambda: device.spent_ns)


def run_steps(watch: MemoryWatch, step_ns: int, steps: int, now_ns: int = 0) -> list[int | None]:
    """Take steps as the timer and the recorder would; what each step's row shows as allocated."""
    looking = [True]
    watch.subscribe(looking.append)
    observed = []
    for _ in range(steps):
        if looking[-1]:
            watch.note_peak()
            watch.note_peak()
        now_ns += step_ns
        if now_ns + step_ns >= watch.due_ns:
            watch.step_ended(now_ns, step_ns)
        observed.append(watch.columns[0])
    return observed


def test_every_long_step_has_a_reading_and_a_look_of_its_own() -> None:
    device = CountingDevice()
    assert run_steps(a_watch(device), OWN_NS, 10) == list(range(1, 11))
    assert device.notes == 20


def test_short_steps_share_readings() -> None:
    device = CountingDevice()
    observed = run_steps(a_watch(device), SHARED_NS // 5, 50)
    assert 8 <= device.readings <= 12
    assert observed == sorted(observed, key=lambda number: number or 0)
    assert device.notes == 2 * device.readings


class LevelDevice(CountingDevice):
    """Its memory has the level that the test sets."""

    level = 1_000

    def read_memory(self) -> MemoryReading:
        return super().read_memory()._replace(allocated_bytes=self.level)


def readings_per_second(watch: MemoryWatch, device: CountingDevice, begin_ms: int) -> int:
    """Take a second of short steps; how often memory was read meanwhile."""
    before = device.readings
    run_steps(watch, MS, 1_000, begin_ms * MS)
    return device.readings - before


def test_memory_that_does_not_rise_is_read_half_as_often() -> None:
    device = LevelDevice()
    watch = a_watch(device)
    most = MS * 1_000 // SHARED_NS
    paces = [readings_per_second(watch, device, second * 1_000) for second in range(12)]
    assert paces[:4] == [most] * 4
    assert paces[-4:] == [most // 2] * 4


def test_memory_that_rises_is_read_often_at_once() -> None:
    device = LevelDevice()
    watch = a_watch(device)
    run_steps(watch, MS, 12_000)
    begin_ns, before = 12_000 * MS, device.readings
    for number in range(1_000):
        device.level += 1
        run_steps(watch, MS, 1, begin_ns + number * MS)
    assert device.readings - before >= 1_000 * MS // SHARED_NS - 1


def take_steps(watch: MemoryWatch, device: CountingDevice, steps_ns: list[int]) -> list[tuple[int, bool]]:
    """Take steps of these durations; return the number of each that was read, and whether with its peak."""
    looking = [True]
    watch.subscribe(looking.append)
    now_ns, readings = 0, []
    for number, step_ns in enumerate(steps_ns):
        before, has_peak = device.readings, looking[-1]
        now_ns += step_ns
        if now_ns + step_ns >= watch.due_ns:
            watch.step_ended(now_ns, step_ns)
        if device.readings > before:
            readings.append((number, has_peak))
    return readings


def test_the_step_after_one_that_turns_out_long_is_read_with_its_peak() -> None:
    device = CountingDevice()
    readings = take_steps(a_watch(device), device, [MS, MS, 100 * MS, 100 * MS])
    assert readings == [(0, True), (3, True)]


@given(st.lists(st.integers(1, 60), min_size=50, max_size=200))
def test_no_reading_is_without_its_peak_however_long_steps_take(steps_ms: list[int]) -> None:
    device = CountingDevice()
    readings = take_steps(a_watch(device), device, [step_ms * MS for step_ms in steps_ms])
    assert all(has_peak for _, has_peak in readings)
    elapsed_ms, longest_ms = sum(steps_ms), max(steps_ms)
    assert len(readings) >= elapsed_ms // (2 * SHARED_NS // MS + 2 * longest_ms)


def test_where_short_and_long_steps_take_turns_both_are_read() -> None:
    device = CountingDevice()
    readings = take_steps(a_watch(device), device, [5 * MS, 500 * MS] * 10)
    assert {number % 2 for number, _ in readings} == {0, 1}
    assert len(readings) >= 19


def test_a_device_that_tracks_its_peak_is_read_after_a_step_that_turns_out_long() -> None:
    device = CountingDevice()
    watch = a_watch(device)
    watch.step_ended(MS, MS)
    watch.step_ended(2 * MS, MS)
    assert device.readings == 1
    watch.step_ended(102 * MS, 100 * MS)
    assert device.readings == 2


def test_the_columns_are_those_of_a_step_row_in_order() -> None:
    device = a_device()
    device.allocator.allocate(4096)
    watch = MemoryWatch(device)
    watch.step_ended(0, 1)
    assert watch.columns == (*device.allocator.read(), None)


def test_after_a_change_every_step_is_read_and_nothing_from_before_it_is_shown() -> None:
    device = CountingDevice()
    watch = a_watch(device)
    run_steps(watch, MS, 30)
    before = device.readings
    watch.restart(6)
    assert watch.columns == (None,) * 9
    observed = run_steps(watch, MS, 10, now_ns=30 * MS)
    assert observed[:6] == [before + 2 + step for step in range(6)]
    assert len(set(observed[6:])) == 1


def test_where_readings_are_slow_fewer_steps_are_read_and_each_with_its_peak() -> None:
    device = CountingDevice(reading_ns=180_000)
    observed = run_steps(a_watch(device), 35 * MS, 40)
    assert observed[:2] == [1, 2]
    assert observed[2:] == [number for number in range(3, 22) for _ in "ab"]
    assert device.notes == 2 * device.readings


def test_every_reading_of_a_step_counts() -> None:
    device = CountingDevice(reading_ns=180_000)
    watch = a_watch(device)
    for number in range(40):
        if watch.is_sampled:
            for _micro_batch in range(8):
                watch.note_peak()
        watch.step_ended((number + 1) * 100 * MS, 100 * MS)
    assert device.spent_ns <= MOST_SHARE * 40 * 100 * MS + 3 * 9 * device.reading_ns


def test_a_reading_applies_for_a_tenth_of_a_second() -> None:
    device = CountingDevice(reading_ns=600_000)
    watch = a_watch(device)
    run_steps(watch, 60 * MS, 2)
    assert run_steps(watch, 60 * MS, 6, now_ns=120 * MS) == [3, 3, None, 4, 4, None]
    assert watch.baseline_bytes == 4
    assert watch.columns == (None, 42, *(None,) * 6, 42)  # The RSS can be read at any time.


def test_short_steps_have_the_rss_as_often_as_before() -> None:
    device = CountingDevice(reading_ns=5 * MS)
    watch = a_watch(device)
    run_steps(watch, OWN_NS, 4)
    begin_ns, looks = 4 * OWN_NS, []
    for now_ns in range(begin_ns, begin_ns + 1_000 * MS, MS):
        if now_ns + MS >= watch.due_ns:
            watch.step_ended(now_ns, MS)
            looks.append(now_ns)
    assert 15 <= len(looks) <= 45
    assert device.readings == 3
    assert watch.columns[1] == 42


def test_after_a_change_every_step_is_read_however_slow_readings_are() -> None:
    device = CountingDevice(reading_ns=5 * MS)
    watch = a_watch(device)
    run_steps(watch, 35 * MS, 10)
    before = device.readings
    watch.restart(6)
    observed = run_steps(watch, 35 * MS, 12, now_ns=350 * MS)
    assert observed[:6] == [before + 2 + step for step in range(6)]
    assert observed[6:9] == [before + 7, before + 7, None]


def test_a_single_slow_reading_is_none_that_counts() -> None:
    device = CountingDevice()
    watch = a_watch(device)
    for number in range(12):
        device.reading_ns = 5 * MS if number % 4 == 3 else 0
        run_steps(watch, OWN_NS, 1, now_ns=number * OWN_NS)
    assert device.readings == 12


def test_a_reading_that_was_only_interrupted_is_not_slow() -> None:
    device = CountingDevice()
    watch = MemoryWatch(device, cpu_ns=lambda: 0)  # type: ignore[arg-type]
    device.reading_ns = 50 * MS  # Of wall time.
    assert run_steps(watch, OWN_NS, 10) == list(range(1, 11))


def test_when_readings_are_fast_again_every_step_is_read() -> None:
    device = CountingDevice(reading_ns=MS)
    watch = a_watch(device)
    run_steps(watch, OWN_NS, 40)
    device.reading_ns = 1_000
    run_steps(watch, OWN_NS, 40, now_ns=40 * OWN_NS)
    before = device.readings
    run_steps(watch, OWN_NS, 10, now_ns=80 * OWN_NS)
    assert device.readings == before + 10


@given(
    step_ns=st.integers(MS // 2, 300 * MS),
    durations_ns=st.lists(st.integers(1_000, 20 * MS), min_size=1, max_size=5),
)
def test_readings_take_a_bounded_share_of_the_time(step_ns: int, durations_ns: list[int]) -> None:
    device = CountingDevice()
    watch = a_watch(device)
    now_ns = 0
    for duration_ns in durations_ns:
        device.reading_ns = duration_ns
        run_steps(watch, step_ns, 5, now_ns)  # It takes some readings to know how long they take.
        now_ns += 5 * step_ns
    device.spent_ns = 0
    steps = max(1_000, 3 * int(3 * max(durations_ns) / MOST_SHARE / step_ns))
    run_steps(watch, step_ns, steps, now_ns)
    learning_ns = 9 * max(durations_ns)
    assert device.spent_ns - learning_ns <= MOST_SHARE * steps * step_ns + 3 * max(durations_ns)


@pytest.mark.slow
def test_many_free_blocks_in_the_real_heap_make_fewer_steps_read() -> None:
    device = CpuDevice.open()
    watch = MemoryWatch(device)
    watch.restart(1)
    blocks = [bytes(2000) for _ in range(200_000)]
    del blocks[::2]
    readings, now_ns = [], 0
    for _ in range(200):
        now_ns += OWN_NS
        if now_ns + OWN_NS >= watch.due_ns:
            watch.step_ended(now_ns, OWN_NS)
        readings.append(watch.read_ns)
    assert 4 <= len(set(readings)) <= 50


def test_failures_count_from_the_newest_reading() -> None:
    earlier = MemoryReading(*(None,) * 6, alloc_retries=2, ooms=1)
    later, uncounted = earlier._replace(alloc_retries=3), MemoryReading(*(None,) * 8)
    device = a_device()
    device.read_memory = iter((earlier, later)).__next__  # type: ignore[method-assign]
    watch = MemoryWatch(device)
    assert [watch.has_failures(reading) for reading in (earlier, uncounted, None)] == [True, False, False]
    watch.step_ended(0, OWN_NS)
    assert (watch.has_failures(earlier), watch.has_failures(later)) == (False, True)
    watch.restart(5)
    assert not watch.has_failures(later)


class UnreadableDevice(CountingDevice):
    """Its readings are missing from the second on, as of a malloc that cannot be read."""

    def read_memory(self) -> MemoryReading:
        reading = super().read_memory()
        return reading if self.readings == 1 else reading._replace(allocated_bytes=None)


def test_the_level_is_as_old_as_its_reading() -> None:
    watch = a_watch(CountingDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (3, 0)
    assert watch.age_ns(340 * MS) == 40 * MS


def test_a_reading_that_is_missing_makes_the_level_older_and_no_other() -> None:
    watch = a_watch(UnreadableDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (1, 200 * MS)


def test_a_restart_between_two_steps_is_a_reading_of_now() -> None:
    watch = a_watch(CountingDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    watch.restart(steps=5)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (4, 0)


def test_what_is_of_no_step_leaves_its_peak_to_none() -> None:
    device = CountingDevice()
    watch = a_watch(device)
    assert watch.leave_out(1) == 7  # The first step is to be read.
    run_steps(watch, 1_000_000, 3)
    assert not watch.is_sampled
    assert watch.leave_out(OWN_NS - 1) is None  # As where an agent acts between two short steps.
    assert watch.leave_out(OWN_NS) == 7
    assert device.peaks == 2


def test_failed_requests_are_those_since_the_reading_before() -> None:
    class Failing(CountingDevice):
        ooms: int | None = 3

        def read_memory(self) -> MemoryReading:
            return super().read_memory()._replace(ooms=self.ooms)

    device, failed = Failing(), list[int]()
    watch = a_watch(device)
    watch.on_failed = failed.append
    run_steps(watch, OWN_NS, 2)  # Those before the first reading are of no step.
    device.ooms = 5
    run_steps(watch, OWN_NS, 2, 2 * OWN_NS)
    device.ooms = 6
    watch.restart(1)
    run_steps(watch, OWN_NS, 2, 4 * OWN_NS)
    device.ooms = None
    run_steps(watch, OWN_NS, 1, 6 * OWN_NS)
    assert failed == [2, 1]
