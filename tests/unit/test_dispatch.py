"""A broken observer is dropped and reported; training and the other observers go on."""

import pytest

from harness.device.protocol import StepTicket
from harness.watch.context import Progress
from harness.watch.dispatch import Dispatcher
from harness.watch.guard import MOST_FAILURES, FailureGuard
from harness.watch.readback import LossTicket
from harness.watch.timing import Times
from tests.train_factories import raising, some_times


class Listener:
    def __init__(self, breaks_at: int = 0, error: type[Exception] = ValueError) -> None:
        self._breaks_at = breaks_at
        self._error = error
        self.heard: list[int] = []

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        if step == self._breaks_at:
            raise self._error("cannot count that far")
        self.heard.append(step)


def test_every_listener_hears_every_step() -> None:
    first, second = Listener(), Listener()
    dispatcher = Dispatcher({"a": first, "b": second}, FailureGuard(raising(AssertionError())), Progress())
    for step in (1, 2):
        dispatcher.step_ended(step, some_times(), None, None, 1, None)
    assert first.heard == second.heard == [1, 2]


def test_a_listener_that_breaks_is_dropped_and_the_others_miss_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports: list[tuple[str, str]] = []
    broken, fine = Listener(breaks_at=2), Listener()
    guard = FailureGuard(lambda name, error: reports.append((name, error)))
    dispatcher = Dispatcher({"broken": broken, "fine": fine}, guard, Progress())
    for step in (1, 2, 3):
        dispatcher.step_ended(step, some_times(), None, None, 1, None)
    assert broken.heard == [1]
    assert fine.heard == [1, 2, 3]
    assert reports == [("broken", "ValueError: cannot count that far")]
    assert "cannot count that far" in capsys.readouterr().err


def test_progress_is_kept_even_when_nobody_listens_any_more() -> None:
    progress = Progress(zero_ns=100)
    dispatcher = Dispatcher({"a": Listener(breaks_at=1)}, FailureGuard(lambda *_: None), progress)
    dispatcher.step_ended(1, some_times(), None, None, 1, None)
    dispatcher.step_ended(2, some_times(end_ns=177, step_ns=7), None, None, 1, None)
    assert (progress.last_step, progress.last_end_ns, progress.last_step_ns) == (2, 77, 7)


def test_a_guarded_job_that_keeps_raising_is_dropped_and_reported_once() -> None:
    reports: list[str] = []
    guard = FailureGuard(lambda name, error: reports.append(f"{name}: {error}"))
    calls: list[int] = []

    def job() -> None:
        calls.append(1)
        raise OSError("stale file handle")

    for _ in range(MOST_FAILURES + 3):
        assert not guard.run("heartbeat", job)
    assert guard.run("other", lambda: None)
    assert len(calls) == MOST_FAILURES
    assert reports == ["heartbeat: OSError: stale file handle"]


def test_a_passing_fault_costs_a_job_nothing_more() -> None:
    reports: list[str] = []
    guard = FailureGuard(lambda name, _error: reports.append(name))
    for _ in range(3):
        for _ in range(MOST_FAILURES - 1):
            assert not guard.run("commands", raising(OSError("try again")))
        assert guard.run("commands", lambda: None)
    assert reports == []


def test_a_listener_out_of_memory_ends_the_run_and_not_the_listener() -> None:
    dispatcher = Dispatcher({"a": Listener(1, MemoryError)}, FailureGuard(lambda *_: None), Progress())
    with pytest.raises(MemoryError):
        dispatcher.step_ended(1, some_times(), None, None, 1, None)


def test_a_wish_to_exit_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        FailureGuard(lambda *_: None).run("job", raising(KeyboardInterrupt()))
