"""Test what Stepscope costs a run: which steps go unobserved, and what their comparison says."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.timing.overhead import (
    ASYNCHRONOUS,
    MIN_COMPARISONS,
    SYNCHRONOUS,
    BlockComparison,
    BlockPlan,
    compare_block,
    estimate_overhead,
    interval,
    sentence,
)
from harness.device.event_clock import EventClock
from harness.device.testing.device import FakeQueue
from harness.records.overhead import OverheadRow, UnobservedRow
from harness.records.run import CommandKind, DeviceKind, SettingsRow, StepRow
from harness.records.script import UnavailableSettingRow
from harness.settings.spec import change
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.supervisor.overhead import overhead_text, read_overhead
from harness.train.loop import take_step, train
from harness.watch.context import Progress
from harness.watch.jobs.peak import LONG_NS, PeakWatch
from harness.watch.memory import MemoryWatch
from harness.watch.timing import StepTimer
from harness.watch.unobserved import MOST
from tests.store_factories import a_run, a_step
from tests.train_factories import (
    CPU_FACTS,
    Clock,
    Watched,
    a_command,
    a_context,
    a_device,
    a_workload,
    raising,
)

QUICK = BlockPlan(steps=4, discarded=1, by_block=False)
STEP_NS = 700_000


class SlowObserver:
    """An observer that takes so long a step."""

    def __init__(self, clock: Clock, takes_ns: int) -> None:
        self._clock, self._takes_ns = clock, takes_ns

    def step_ended(self, *_: Any) -> None:
        self._clock.now_ns += self._takes_ns


class Run(Watched):
    """A run of a real model with real observers, by a clock of its own: a step takes `STEP_NS`, give or take
    a twentieth, and drifts upwards as it goes."""

    def __init__(self, steps: int, observer_ns: int = 0, plan: BlockPlan = QUICK, **values: Any) -> None:
        clock = Clock()
        slow = {"slow": SlowObserver(clock, observer_ns)}
        super().__init__(now_ns=clock, plan=plan, listeners=slow, max_steps=steps, **values)
        self.unobserved, self.meter = self.steps.unobserved, self.instruments.meter
        self.rows: list[StepRow] = []
        self._noise = random.Random(0)
        self._count = 0
        self._update = self.workload.update
        self.workload.update = self.update

    def update(self) -> None:
        self._count += 1
        self.clock.now_ns += round(self._noise.gauss(STEP_NS, STEP_NS / 20)) + 10 * self._count
        self._update()

    def train(self) -> None:
        train(self.workload, self.steps)
        self.rows += self.journal.feed()
        self.workload.close()

    def before_step(self, step: int) -> None:
        """Let the blocks alone act before `step`, of settled ones."""
        self.steps.boundary.step = step
        self.unobserved.before_step(self.steps.boundary)

    @property
    def blocks(self) -> list[UnobservedRow]:
        return self.journal.of(UnobservedRow)

    @property
    def told(self) -> list[OverheadRow]:
        return self.journal.of(OverheadRow)


@pytest.mark.long
def test_what_a_slow_observer_adds_lies_in_the_interval_that_is_stated() -> None:
    run = Run(1_750, observer_ns=90_000)
    run.train()
    newest = run.told[-1]
    assert newest.comparisons == 8
    assert 0 < newest.low_ns <= 90_000 <= newest.high_ns
    assert newest.step_ns == pytest.approx(STEP_NS, rel=0.05)
    assert "Overhead:" in newest.message


@pytest.mark.long
def test_observers_that_take_no_time_have_no_visible_cost() -> None:
    run = Run(1_500)
    run.train()
    assert run.told[-1].low_ns <= 0 <= run.told[-1].high_ns
    assert run.told[-1].message.startswith("No measurable overhead: below ±")


@pytest.mark.slow
def test_every_step_is_either_observed_or_counted_as_unobserved_and_the_model_learns_the_same() -> None:
    run, other = Run(500), Run(500, measure_overhead=False)
    run.train()
    other.train()
    unobserved = [step for row in run.blocks for step in range(row.first_step, row.last_step + 1)]
    assert len(unobserved) == 8
    assert sorted([row.step for row in run.rows] + unobserved) == list(range(1, 501))
    assert sum(row.samples for row in run.rows) + sum(row.samples for row in run.blocks) == 500 * 8
    assert not other.blocks
    pairs = zip(run.workload.model.parameters(), other.workload.model.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_less_than_one_step_in_fifty_goes_unobserved_and_none_of_the_first_thousand() -> None:
    for plan in (SYNCHRONOUS, ASYNCHRONOUS):
        assert plan.steps / plan.apart < 0.02
        assert plan.apart > 1_000


@pytest.mark.slow
def test_a_command_ends_the_block_and_its_steps_are_not_compared() -> None:
    run = Run(QUICK.apart + 60)
    put = a_command(CommandKind.SET, '{"learning_rate": 0.5}')
    before = run.update

    def update() -> None:
        if run._count == QUICK.apart:
            run.inbox.put(put)
        before()

    run.workload.update = update
    run.train()
    (block,) = run.blocks
    assert (block.first_step, block.last_step) == (QUICK.apart, QUICK.apart + 1)
    assert run.rows[QUICK.apart - 1].step == QUICK.apart + 2
    assert run.rows[QUICK.apart - 1].flags
    assert not run.meter._waiting


def test_an_evaluation_within_a_block_is_no_part_of_its_steps() -> None:
    run = Run(10**6)
    run.marks.flags = 0
    run.before_step(QUICK.apart)
    ends_ns = run.progress.unobserved_ns
    assert ends_ns is not None
    for step in range(QUICK.steps):
        if step == 2:
            run.clock.now_ns += 50 * STEP_NS
            assert run.timer.leave_out() == 50 * STEP_NS
        run.clock.now_ns += STEP_NS
        run.timer.end_ns = run.clock.now_ns
        ends_ns.append(run.clock.now_ns)
    run.before_step(QUICK.apart + QUICK.steps)
    assert run.timer.is_observing
    (block,) = run.blocks
    assert block.wall_ns == QUICK.steps * STEP_NS
    assert run.meter._ended


def test_while_something_else_is_going_on_no_block_begins() -> None:
    run = Run(10)
    run.steps.boundary.is_capturing = True
    run.marks.flags = 0
    run.before_step(500)
    assert run.timer.is_observing
    assert 500 < run.unobserved.due < 500 + QUICK.apart


def test_no_block_begins_that_would_reach_the_end_of_the_run_or_last_too_long() -> None:
    run = Run(510)
    run.marks.flags = 0
    run.before_step(505)
    assert run.timer.is_observing
    run.clock.now_ns += 10 * 2_000_000_000
    run.workload.settings = change(run.workload.settings, {"max_steps": None})
    run.before_step(515)
    assert run.timer.is_observing
    run.before_step(615)
    assert run.progress.unobserved_ns == [run.clock.now_ns]


def test_it_is_measured_so_often_and_again_under_other_settings() -> None:
    run = Run(10**6)
    run.marks.flags = 0

    def blocks_until(last: int, step: int) -> int:
        result = len(run.blocks)
        while step < last:
            step = run.unobserved.due
            run.before_step(step)
            if run.progress.unobserved_ns is not None:
                run.progress.unobserved_ns.extend(range(QUICK.steps))
        return len(run.blocks) - result

    assert blocks_until(40 * QUICK.apart, 0) == MOST
    run.marks.settings_version += 1
    assert blocks_until(80 * QUICK.apart, 40 * QUICK.apart) == MOST


@pytest.mark.parametrize(
    ("failing", "laps"), [("next_batch", 0), ("forward", 2), ("backward", 3), ("update", 4)]
)
def test_a_step_that_fails_unobserved_tells_how_far_it_came(failing: str, laps: int) -> None:
    workload, timer = a_workload(), StepTimer(Clock())
    setattr(workload, failing, raising(RuntimeError("out of memory")))
    timer.unobserve()
    with pytest.raises(RuntimeError):
        take_step(workload, timer, 1)
    assert timer.laps == laps


def test_unobserved_steps_leave_no_mark_on_the_device_and_the_next_step_has_no_gap() -> None:
    queue = FakeQueue()
    timer = StepTimer(Clock(), EventClock(queue.event))
    workload = a_workload()
    timer.unobserve()
    times_ns, ticket, loss = take_step(workload, timer, 1)
    assert queue.marks == 0
    assert (ticket, loss) == (None, None)
    assert times_ns[-1] == timer.end_ns
    timer.restart()
    assert timer.is_observing


def test_behind_a_queue_blocks_are_compared_and_not_single_steps() -> None:
    """The CPU issues three steps at once and then waits for the device: the median step says nothing."""
    without = [100_000, 100_000, 100_000, 3_700_000] * 8
    observed = [150_000, 150_000, 150_000, 3_590_000] * 8
    result = compare_block(ASYNCHRONOUS, observed, without, observed)
    assert result.without_ns == 1_000_000
    assert result.with_ns - result.without_ns == 10_000


def test_a_drift_over_the_block_and_its_neighbors_cancels() -> None:
    result = compare_block(SYNCHRONOUS, [100, 101, 102], [103, 104, 105], [106, 107, 108])
    assert result == BlockComparison(104, 104)


def test_the_interval_takes_in_fewer_of_the_values_the_more_there_are() -> None:
    assert interval(range(MIN_COMPARISONS)) == (0, 5)
    assert interval(range(12)) == (2, 9)
    assert interval(range(24)) == (6, 17)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    noise, count = random.Random(1), 0
    for _ in range(2_000):
        low, high = interval(sorted(noise.expovariate(1.0) for _ in range(12)))
        count += low <= 0.693147 <= high
    assert count / 2_000 == pytest.approx(0.961, abs=0.015)


def test_few_comparisons_say_nothing() -> None:
    assert estimate_overhead([BlockComparison(1, 2)] * (MIN_COMPARISONS - 1)) is None


def test_the_cost_is_said_with_its_interval_and_its_share() -> None:
    result = estimate_overhead(
        [BlockComparison(1_000_000, 1_000_000 + extra) for extra in range(8_000, 14_000, 1_000)]
    )
    assert result is not None
    assert sentence(result) == (
        "Overhead: 10.5 µs (8.0 µs to 13.0 µs) per step of 1.0 ms, 1.1 % (6 blocks of unobserved steps)."
    )


def test_nobody_takes_the_time_between_two_ends_for_a_long_step() -> None:
    clock, progress = Clock(), Progress(0, 5, (0, 10))
    watch = PeakWatch(a_context(clock_ns=clock, progress=progress), MemoryWatch(a_device()))
    clock.now_ns = 3 * LONG_NS
    assert watch._is_long()
    progress.unobserve([20, 2 * LONG_NS])
    assert progress.last_end_ns == 2 * LONG_NS
    assert not watch._is_long()
    progress.unobserve(None)
    assert progress.last_end_ns == 2 * LONG_NS


COST = OverheadRow(5, 900, 1, 8, 700_000, 9_000, 6_000, 12_000, "Adds 9.0 µs.")


def test_the_log_keeps_the_cost_and_counts_the_samples_of_unobserved_steps(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    steps = [a_step(step)._replace(samples=8) for step in (1, 2, 7, 8)]
    with LogAppender(path, a_run()) as log:
        log.append(steps, [UnobservedRow(3, 6, 1, 1, 32, None, 1), COST, COST._replace(extra_ns=1)])
    with LogReader(path) as reader:
        assert reader.overhead.latest() == COST._replace(extra_ns=1)
        assert [row.last_step for row in reader.overhead.unobserved(4, 9)] == [6]
        assert reader.overhead.unobserved(7, 9) == []
        assert reader.series(1, 8).unobserved == ((3, 6),)
        assert reader.telemetry.samples_trained(1, 8) == 64
        assert reader.telemetry.samples_trained(2, 4) == 24


def test_of_a_block_that_is_partly_in_a_range_the_samples_count_in_proportion(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as log:
        log.append([a_step(1)._replace(samples=64)], [UnobservedRow(2, 5, 1, 1, 130, None, 1)])
    with LogReader(path) as reader:
        assert reader.telemetry.samples_trained(1, 5) == 64 + 130
        assert reader.telemetry.samples_trained(1, 3) == 64 + 65


@pytest.mark.parametrize(
    ("settings", "rows", "text"),
    [
        ("{}", [COST], "Adds 9.0 µs."),
        ("{}", [COST._replace(settings_version=0)], "before settings were last changed"),
        ("{}", [], "it takes about 6,120 steps"),
        ('{"measure_overhead": false}', [], "measure_overhead is off"),
    ],
)
def test_what_is_known_is_said_and_why_nothing_is(
    tmp_path: Path, settings: str, rows: list[OverheadRow], text: str
) -> None:
    with LogAppender(tmp_path / "log", a_run()) as log:
        log.append((), [SettingsRow(1, 1, 0, settings, "{}", None), *rows])
    with LogReader(tmp_path / "log") as reader:
        assert text in overhead_text(read_overhead(reader, CPU_FACTS))
    assert CPU_FACTS.kind is DeviceKind.CPU


def test_the_overhead_of_a_script_says_that_it_leaves_out_what_unobserved_steps_do_too(
    tmp_path: Path,
) -> None:
    texts = []
    for name, extra in (("catalog", []), ("script", [UnavailableSettingRow("compile", "no")])):
        with LogAppender(tmp_path / name, a_run()) as log:
            log.append((), [SettingsRow(1, 1, 0, "{}", "{}", None), COST, *extra])
        with LogReader(tmp_path / name) as reader:
            texts.append(overhead_text(read_overhead(reader, CPU_FACTS)))
    assert ["Not included" in text for text in texts] == [False, True]
