"""A run whose steps end no more is called stalled, once, and told to be going on when it does."""

import threading
from pathlib import Path

import pytest

from harness.records.run import EventKind, RunState
from harness.watch.context import Progress
from harness.watch.jobs.stall import StallWatch, dump_stacks, line_of_this_thread
from tests.supervision import until
from tests.train_factories import Clock, FakeJournal, a_context

S = 1_000_000_000


class Bench:
    def __init__(self, began_s: int = 0) -> None:
        self.clock, self.journal, self.progress = Clock(), FakeJournal(), Progress()
        self.paused = False
        self.dumps = 0
        self.clock.now_ns = began_s * S
        context = a_context(None, self.journal, self.clock, self.progress)
        self.last_event_ns = 0
        self.watch = StallWatch(context, lambda: self.paused, 60.0, self._dump, lambda: self.last_event_ns)

    def _dump(self) -> str:
        self.dumps += 1
        return "the stacks are in the run's output"

    def step(self) -> None:
        self.progress.last_step += 1
        self.progress.times_ns = (0, self.clock.now_ns)

    def at(self, second: int) -> None:
        self.clock.now_ns = second * S
        self.watch.check()


def test_steps_that_end_in_time_are_no_stall() -> None:
    bench = Bench()
    for second in range(0, 500, 50):
        bench.clock.now_ns = second * S
        bench.step()
        bench.at(second + 49)
    assert bench.journal.states == []


def test_an_evaluation_that_lasts_long_is_no_stall_until_it_hangs() -> None:
    bench = Bench()
    bench.step()
    for second in range(10, 400, 10):
        bench.last_event_ns = second * S
        bench.at(second + 1)
    assert bench.journal.states == [RunState.RUNNING]
    assert bench.journal.messages == [
        "No step has ended for 61 s, but models are called, as in an evaluation; the stacks are in the run's "
        "output."
    ]
    assert bench.journal.events == []
    bench.at(449)
    assert bench.journal.states == [RunState.RUNNING]
    bench.at(450)
    (event,) = bench.journal.events
    assert event.message == "No step has ended for 450 s; the stacks are in the run's output."
    bench.last_event_ns = 460 * S
    bench.at(461)
    bench.step()
    bench.at(462)
    assert bench.journal.states[1:] == [RunState.STALLED, RunState.RUNNING, RunState.RUNNING]
    assert bench.journal.messages[-1] == "Continuing at step 2."


def test_events_are_compared_on_the_clock_of_the_steps() -> None:
    bench = Bench()
    bench.progress.zero_ns = 1_000 * S
    bench.last_event_ns = 1_059 * S
    bench.at(60)
    assert bench.journal.states == [RunState.RUNNING]


def test_a_stall_is_said_once_with_the_stacks_and_then_its_end() -> None:
    bench = Bench()
    bench.step()
    for second in (59, 60, 61, 200):
        bench.at(second)
    assert bench.dumps == 1
    (event,) = bench.journal.events
    assert (event.kind, event.step) == (EventKind.STALL, 1)
    assert event.message == "No step has ended for 60 s; the stacks are in the run's output."
    bench.step()
    bench.at(201)
    bench.at(202)
    assert bench.journal.states == [RunState.STALLED, RunState.RUNNING]


def test_it_can_stall_again() -> None:
    bench = Bench()
    for second in (60, 200):
        bench.at(second)
        bench.step()
        bench.at(second + 1)
    assert bench.journal.states == [RunState.STALLED, RunState.RUNNING] * 2


def test_a_paused_run_is_not_stalled_and_has_its_full_time_again_when_resumed() -> None:
    bench = Bench()
    bench.paused = True
    bench.at(1000)
    bench.paused = False
    bench.at(1059)
    assert bench.journal.states == []
    bench.at(1060)
    assert bench.journal.states == [RunState.STALLED]


def test_the_time_it_took_to_build_the_model_is_no_stall() -> None:
    bench = Bench(began_s=1000)
    bench.at(1059)
    assert bench.journal.states == []
    bench.at(1060)
    assert bench.journal.states == [RunState.STALLED]


def test_the_stacks_go_to_the_runs_output(capfd: pytest.CaptureFixture[str]) -> None:
    clock, journal = Clock(), FakeJournal()
    watch = StallWatch(a_context(None, journal, clock), lambda: False, 1.0, dump_stacks)
    clock.now_ns = S
    watch.check()
    assert "test_the_stacks_go_to_the_runs_output" in capfd.readouterr().err


def test_a_script_that_stalls_is_named_by_its_line_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    find_line, waiting, goes_on = [], threading.Event(), threading.Event()

    def script() -> None:
        find_line.append(line_of_this_thread())
        waiting.set()
        goes_on.wait(60)  # THE LINE

    thread = threading.Thread(target=script)
    thread.start()
    waiting.wait(60)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(at for at, text in enumerate(lines, 1) if text.endswith("# THE LINE"))
    try:
        until(find_line[0], lambda text: text == f"the script is at test_stall.py:{line} script")
    finally:
        goes_on.set()
        thread.join()
    assert find_line[0]() == "the script is in no line of its own"
    assert capfd.readouterr().err == ""
