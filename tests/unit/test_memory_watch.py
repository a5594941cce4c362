"""Test how often memory is looked at."""

from typing import Any

from harness.records.run import MAX_SHARED_READING_NS, MemoryReading
from harness.watch.memory import OWN_NS, MemoryWatch
from tests.train_factories import a_device

MS = 1_000_000


class CountingDevice:
    """Stands in for a device: each reading is numbered."""

    def __init__(self) -> None:
        self.notes = 0
        self.readings = 0

    def note_peak(self) -> None:
        self.notes += 1

    def read_memory(self) -> MemoryReading:
        self.readings += 1
        return MemoryReading(self.readings, *(None,) * 7)

    def rss_bytes(self) -> int:
        return 42


def a_watch(device: Any) -> MemoryWatch:
    return MemoryWatch(device)


def run_steps(watch: MemoryWatch, step_ns: int, steps: int, now_ns: int = 0) -> list[int | None]:
    """Take steps as the timer and the recorder would; what each step's row shows as allocated."""
    looking = [True]
    watch.subscribe(looking.append)
    observed = []
    for _ in range(steps):
        if looking[-1]:
            watch.note_peak()
        now_ns += step_ns
        if now_ns + step_ns >= watch.due_ns:
            watch.step_ended(now_ns, step_ns)
        observed.append(watch.columns[0])
    return observed


def test_every_long_step_has_a_reading_and_a_look_of_its_own() -> None:
    device = CountingDevice()
    assert run_steps(a_watch(device), OWN_NS, 10) == list(range(1, 11))
    assert device.notes == 10


def test_short_steps_share_readings() -> None:
    device = CountingDevice()
    observed = run_steps(a_watch(device), MAX_SHARED_READING_NS // 5, 50)
    assert 8 <= device.readings <= 12
    assert observed == sorted(observed, key=lambda number: number or 0)
    assert device.notes == device.readings


def test_a_step_that_turns_out_long_is_read_all_the_same() -> None:
    device = CountingDevice()
    watch = a_watch(device)
    run_steps(watch, MS, 2)
    assert device.readings == 1
    run_steps(watch, 100 * MS, 2, now_ns=2 * MS)
    assert device.readings == 3


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


class SlowHeapDevice(CountingDevice):
    """Its readings are missing from the second on, as while a reading of the heap would take too long."""

    def read_memory(self) -> MemoryReading:
        reading = super().read_memory()
        return reading if self.readings == 1 else reading._replace(allocated_bytes=None)


def test_the_level_is_as_old_as_its_reading() -> None:
    watch = a_watch(CountingDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (3, 0)
    assert watch.age_ns(340 * MS) == 40 * MS


def test_a_reading_that_is_missing_makes_the_level_older_and_no_other() -> None:
    watch = a_watch(SlowHeapDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (1, 200 * MS)


def test_a_restart_between_two_steps_is_a_reading_of_now() -> None:
    watch = a_watch(CountingDevice())
    run_steps(watch, step_ns=100 * MS, steps=3)
    watch.restart(steps=5)
    assert (watch.baseline_bytes, watch.age_ns(300 * MS)) == (4, 0)
