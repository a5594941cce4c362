"""A broken observer is dropped and reported; training and the other observers go on."""

import pytest

from harness.device.protocol import StepTicket
from harness.observers.dispatch import Dispatcher, Guard, Progress
from harness.train.readback import LossTicket
from harness.train.timing import Times
from tests.train_factories import raising, some_times


class Listener:
    def __init__(self, breaks_at: int = 0) -> None:
        self._breaks_at = breaks_at
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
            raise ValueError("cannot count that far")
        self.heard.append(step)


def test_every_listener_hears_every_step() -> None:
    first, second = Listener(), Listener()
    dispatcher = Dispatcher({"a": first, "b": second}, Guard(raising(AssertionError())), Progress())
    for step in (1, 2):
        dispatcher.step_ended(step, some_times(), None, None, 1, None)
    assert first.heard == second.heard == [1, 2]


def test_a_listener_that_breaks_is_dropped_and_the_others_miss_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports: list[tuple[str, str]] = []
    broken, fine = Listener(breaks_at=2), Listener()
    guard = Guard(lambda name, error: reports.append((name, error)))
    dispatcher = Dispatcher({"broken": broken, "fine": fine}, guard, Progress())
    for step in (1, 2, 3):
        dispatcher.step_ended(step, some_times(), None, None, 1, None)
    assert broken.heard == [1]
    assert fine.heard == [1, 2, 3]
    assert reports == [("broken", "ValueError: cannot count that far")]
    assert "cannot count that far" in capsys.readouterr().err


def test_progress_is_kept_even_when_nobody_listens_any_more() -> None:
    progress = Progress(zero_ns=100)
    dispatcher = Dispatcher({"a": Listener(breaks_at=1)}, Guard(lambda *_: None), progress)
    dispatcher.step_ended(1, some_times(), None, None, 1, None)
    dispatcher.step_ended(2, some_times(end_ns=177, step_ns=7), None, None, 1, None)
    assert (progress.last_step, progress.last_end_ns, progress.last_step_ns) == (2, 77, 7)


def test_a_guarded_job_that_raises_is_run_no_more() -> None:
    reports: list[str] = []
    guard = Guard(lambda name, error: reports.append(f"{name}: {error}"))
    calls: list[int] = []

    def job() -> None:
        calls.append(1)
        raise OSError("stale file handle")

    assert not guard.run("heartbeat", job)
    assert not guard.run("heartbeat", job)
    assert guard.run("other", lambda: None)
    assert len(calls) == 1
    assert reports == ["heartbeat: OSError: stale file handle"]


def test_a_wish_to_exit_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        Guard(lambda *_: None).run("job", raising(KeyboardInterrupt()))
