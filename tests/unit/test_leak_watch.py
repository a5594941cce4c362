"""The leak detector beside a run: where it takes its readings, what it writes down, whom it tells."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.analysis.leak.wording import BESIDE_TENSORS
from harness.device.protocol import AllocatorReading
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity, StepRow
from harness.store.inserts import Row
from harness.watch.capture.hunting import HuntResult
from harness.watch.guard import FailureGuard
from harness.watch.jobs.leaks import (
    EARLY_READS,
    EARLY_READS_PER_JUDGMENT,
    READ_PERIOD_S,
    READS_PER_JUDGMENT,
    HeapGauge,
    HostReading,
    LeakWatch,
    Readings,
    WorkersGauge,
)
from harness.watch.memory import MOST_SHARE
from harness.watch.tee import tee
from tests.leak_factories import GIB, MIB, a_row
from tests.train_factories import raising

SECOND_NS = 1_000_000_000


class Bench:
    """A watch with what surrounds it; steps take a tenth of a second and are judged once a second."""

    def __init__(self, garbage_bytes: int = 0, steps_per_reading: int = 1) -> None:
        """Of so many steps one has the memory of live tensors."""
        self.rows: list[Row] = []
        self.leaks_to_hunt: list[LeakRow] = []
        self.hunt_result: HuntResult | None = None
        self.collected = 0
        self.step = 0
        self.settings_version = 1
        self.limits = Limits(10 * GIB, 20 * GIB)
        self._garbage_bytes = garbage_bytes
        self._steps_per_reading = steps_per_reading
        self._held = GIB
        self.readings = Readings()
        self.watch = LeakWatch(
            self.rows.append,
            lambda: self.step * SECOND_NS // 10,
            lambda: self.step,
            LeakDetector(on_cpu=False),
            self.readings,
            lambda: HostReading(None, None),
            lambda: self.limits,
            on_leak=lambda leak, _result: self.leaks_to_hunt.append(leak),
            collect_garbage=self._collect,
            hunt_result=lambda: self.hunt_result,
        )

    def _collect(self) -> None:
        self.collected += 1
        self._held -= self._garbage_bytes

    def train(self, steps: int, leaked_bytes: int) -> None:
        """Take steps that each leak so much, from where the last one left off."""
        for _ in range(steps):
            self.step += 1
            self._held += leaked_bytes
            row = a_row(self.step, self._held, 2 * self._held)
            row = row._replace(settings_version=self.settings_version)
            if self.step % self._steps_per_reading != 1 % self._steps_per_reading:
                row = row._replace(allocated_bytes=None, peak_allocated_bytes=None)
            self.readings.add_rows([row])
            if self.step % 10 == 0:
                self.watch.judge()

    def leaks(self, series: LeakSeries = LeakSeries.ALLOCATED) -> list[LeakRow]:
        return [row for row in self.rows if isinstance(row, LeakRow) and row.series == series]

    def events(self) -> list[EventRow]:
        return [row for row in self.rows if isinstance(row, EventRow)]


def test_verdicts_are_written_when_they_change() -> None:
    bench = Bench()
    bench.train(200, 0)
    verdicts = [row.verdict for row in bench.leaks()]
    assert verdicts[:2] == [LeakVerdict.TOO_EARLY, LeakVerdict.STEADY]
    assert len(verdicts) <= 5


@pytest.mark.parametrize("limits", [Limits(10 * GIB, 20 * GIB), Limits()])
def test_a_leak_is_written_again_every_ten_seconds_while_it_goes_on(limits: Limits) -> None:
    bench = Bench()
    bench.limits = limits
    bench.train(500, MIB)
    times = [row.t_ns for row in bench.leaks() if row.verdict == LeakVerdict.LEAK]
    assert len(times) >= 3
    assert {later - earlier for earlier, later in pairwise(times)} == {10 * SECOND_NS}


def test_the_end_of_the_training_has_the_newest_figures_of_a_leak() -> None:
    bench = Bench()
    bench.train(479, MIB)
    assert bench.leaks()[-1].step < 470
    bench.watch.finish()
    newest = bench.leaks()[-1]
    assert (newest.step, newest.verdict) == (479, LeakVerdict.LEAK)
    assert len(bench.events()) == 1


def test_growth_near_the_limit_is_written_with_the_steps_left_before_it_is_called_a_leak() -> None:
    bench = Bench()
    bench.train(90, 40 * MIB)
    verdicts = [(row.verdict, row.steps_to_oom) for row in bench.leaks()]
    left = (8 * GIB) // (80 * MIB)
    assert verdicts[0] == (LeakVerdict.TOO_EARLY, None)
    assert verdicts[1][0] == LeakVerdict.WATCH
    assert verdicts[1][1] == pytest.approx(left - bench.leaks()[1].step, abs=2)
    assert len(verdicts) == 2
    assert bench.events() == []


def test_a_hunt_that_found_other_memory_than_tensors_is_the_cause_of_the_leak_at_once() -> None:
    bench = Bench()
    bench.train(200, MIB)
    assert bench.leaks()[-1].verdict == LeakVerdict.LEAK
    assert bench.leaks()[-1].cause is None
    written = len(bench.leaks())
    bench.hunt_result = HuntResult(200, is_beside_tensors=True)
    bench.train(10, MIB)
    assert [row.cause for row in bench.leaks()[written:]] == [BESIDE_TENSORS]


@pytest.mark.parametrize("result", [HuntResult(200, False), HuntResult(-1, True)])
def test_a_hunt_that_found_tensors_or_was_before_the_growth_is_no_cause(result: HuntResult) -> None:
    bench = Bench()
    bench.hunt_result = result
    bench.train(400, MIB)
    assert {row.cause for row in bench.leaks()} == {None}


def test_the_reason_for_a_refused_hunt_stands_beside_the_leak() -> None:
    bench = Bench()
    bench.train(200, MIB)
    bench.hunt_result = HuntResult(200, False, refusal="Train without torch.compile.")
    bench.train(10, MIB)
    assert bench.leaks()[-1].cause == (
        "The line that keeps the memory was not searched for. Train without torch.compile."
    )


def test_a_leak_is_told_once_with_its_figures() -> None:
    bench = Bench()
    bench.train(500, MIB)
    (event,) = bench.events()
    assert (event.kind, event.severity, event.label) == (EventKind.LEAK, Severity.WARNING, "leak")
    assert json.loads(event.detail)["bytes_per_step"] == MIB
    assert bench.leaks_to_hunt[0].message == event.message


def test_a_leak_that_stops_is_taken_back_in_words() -> None:
    bench = Bench()
    bench.train(300, MIB)
    bench.train(500, 0)
    assert [event.kind for event in bench.events()] == [EventKind.LEAK, EventKind.LEAK_CLEARED]
    assert bench.leaks()[-1].verdict == LeakVerdict.STEADY


def test_the_garbage_collector_is_asked_once_when_tensors_are_first_watched() -> None:
    bench = Bench()
    bench.train(500, MIB)
    assert bench.collected == 1
    assert [event.kind for event in bench.events()] == [EventKind.LEAK]


@pytest.mark.parametrize(("steps_per_reading", "steps"), [(1, 120), (2, 300)])
def test_memory_that_the_garbage_collector_gives_back_was_held_by_reference_cycles(
    steps_per_reading: int, steps: int
) -> None:
    bench = Bench(50 * MIB, steps_per_reading)
    bench.train(steps, MIB)
    (event,) = (event for event in bench.events() if event.label == "reference cycles")
    assert bench.collected == 1
    assert "40.0 MiB" in event.message  # The next ten steps leaked ten more.


def test_what_waits_for_a_full_disk_is_no_evidence_of_a_leak() -> None:
    bench = Bench()
    bench.train(300, 0)
    is_behind = True
    bench.readings.is_behind = lambda: is_behind
    bench.train(500, MIB)
    bench.watch.check()
    is_behind = False
    bench.train(500, 0)
    assert bench.events() == []
    assert bench.collected == 0
    bench.train(500, MIB)
    assert [event.kind for event in bench.events()] == [EventKind.LEAK]


def test_a_leak_goes_on_over_an_outage_of_the_log_until_there_is_evidence_that_it_has_ended() -> None:
    bench = Bench()
    bench.train(300, MIB)
    is_behind = True
    bench.readings.is_behind = lambda: is_behind
    bench.train(100, MIB)
    is_behind = False
    bench.train(20, 0)
    assert bench.leaks()[-1].verdict == LeakVerdict.LEAK
    bench.train(300, 0)
    assert bench.leaks()[-1].verdict == LeakVerdict.STEADY
    assert [event.kind for event in bench.events()] == [EventKind.LEAK, EventKind.LEAK_CLEARED]


def test_after_a_change_of_settings_there_is_no_verdict_yet() -> None:
    bench = Bench()
    bench.train(300, MIB)
    bench.settings_version = 2
    bench.train(20, MIB)
    assert bench.leaks()[-1].verdict == LeakVerdict.TOO_EARLY


def test_nobody_collects_garbage_in_a_healthy_run() -> None:
    bench = Bench()
    bench.train(500, 0)
    assert bench.collected == 0


def test_the_host_is_looked_at_more_often_than_is_judged() -> None:
    looks, judged = list[int](), list[int]()
    bench = Bench()

    def look() -> HostReading:
        looks.append(1)
        return HostReading(GIB, None)

    class Counting(LeakWatch):
        def judge(self) -> None:
            judged.append(len(looks))
            super().judge()

    watch = Counting(
        bench.rows.append,
        lambda: 0,
        lambda: 1,
        LeakDetector(on_cpu=False),
        bench.readings,
        look,
        lambda: Limits(),
    )
    for _ in range(EARLY_READS + 3 * READS_PER_JUDGMENT):
        watch.check()
    early, later = judged[: EARLY_READS // EARLY_READS_PER_JUDGMENT], judged[-3:]
    assert early == list(range(EARLY_READS_PER_JUDGMENT, EARLY_READS + 1, EARLY_READS_PER_JUDGMENT))
    assert later == [EARLY_READS + number * READS_PER_JUDGMENT for number in (1, 2, 3)]


def test_rows_pass_even_when_the_detector_cannot_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    dropped: list[str] = []
    guard = FailureGuard(lambda name, error: dropped.append(name))

    def feed() -> Sequence[StepRow]:
        return [a_row(1)]

    through = tee(feed, guard.run, {"leak readings": raising(ValueError("broken"))})
    assert [through() for _ in range(7)] == [[a_row(1)]] * 7
    assert dropped == ["leak readings"]
    assert "broken" in capsys.readouterr().err


def test_the_more_workers_there_are_the_more_rarely_they_are_looked_at() -> None:
    one, five = WorkersGauge(lambda: [os.getpid()]), WorkersGauge(lambda: [os.getpid()] * 5)
    assert all(one.read() for _ in range(4))
    assert [five.read() is not None for _ in range(6)] == [True, False, False, True, False, False]
    assert WorkersGauge(list).read() is None


def test_no_sum_is_read_while_a_loader_ends_its_workers() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # It has ended, and was not waited for.
        assert WorkersGauge(lambda: [ended.pid]).read() is None
        assert WorkersGauge(lambda: [os.getpid(), ended.pid]).read() is None
    assert WorkersGauge(lambda: [os.getpid(), ended.pid]).read() is None


def test_a_heap_of_which_a_reading_takes_long_is_read_less_often() -> None:
    now_s, reads = 0.0, 0

    def read() -> AllocatorReading:
        nonlocal now_s, reads
        now_s += 0.02
        reads += 1
        return AllocatorReading.unknown()

    gauge = HeapGauge(read, lambda: now_s)
    seconds = 60
    readings = [gauge.read() for _ in range(int(seconds / READ_PERIOD_S))]
    assert sum(one is not None for one in readings) == reads
    assert 20 <= reads <= 30
    assert now_s <= 1.1 * MOST_SHARE * seconds
