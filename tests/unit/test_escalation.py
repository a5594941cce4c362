"""Stopping a process, replayed with a clock that only moves when told."""

import signal

import pytest

from harness.supervisor.escalation import Escalation, EscalationStage, Patience


class Stubborn:
    """A process that dies of what it is told to die of, and records what reached it."""

    def __init__(self, dies_of: signal.Signals | None = None, dies_at_s: float | None = None) -> None:
        self.now_s = 0.0
        self.dies_of = dies_of
        self.dies_at_s = dies_at_s
        self.signals: list[tuple[int, signal.Signals]] = []
        self.notes: list[str] = []

    def is_gone(self) -> bool:
        by_itself = self.dies_at_s is not None and self.now_s >= self.dies_at_s
        return by_itself or any(number is self.dies_of for _, number in self.signals)

    def receive(self, number: signal.Signals) -> bool:
        self.signals.append((round(self.now_s), number))
        return True

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def escalation(self) -> Escalation:
        return Escalation(self.is_gone, self.receive, self.clock, self.notes.append)


def test_a_process_that_obeys_is_never_signalled() -> None:
    process = Stubborn(dies_at_s=3.0)
    assert process.escalation().run(process.sleep) is EscalationStage.ENDED
    assert process.signals == []
    assert process.now_s == pytest.approx(3.0, abs=0.2)


def test_sigterm_comes_after_ten_seconds_and_is_enough_for_most() -> None:
    process = Stubborn(dies_of=signal.SIGTERM)
    assert process.escalation().run(process.sleep) is EscalationStage.ENDED
    assert process.signals == [(10, signal.SIGTERM)]


def test_sigkill_comes_twenty_seconds_after_sigterm() -> None:
    process = Stubborn(dies_of=signal.SIGKILL)
    assert process.escalation().run(process.sleep) is EscalationStage.ENDED
    assert process.signals == [(10, signal.SIGTERM), (30, signal.SIGKILL)]


def test_a_stop_command_that_could_not_be_sent_is_not_waited_for() -> None:
    process = Stubborn(dies_of=signal.SIGKILL)
    escalation = Escalation(
        process.is_gone, process.receive, process.clock, process.notes.append, undelivered="The disk is full."
    )
    assert escalation.run(process.sleep) is EscalationStage.ENDED
    assert process.signals == [(0, signal.SIGTERM), (20, signal.SIGKILL)]
    assert process.notes[0] == (
        "stop: the stop command could not be sent (The disk is full), sending SIGTERM to the process group"
    )


def test_a_process_stuck_in_the_kernel_is_given_up_after_forty_seconds() -> None:
    process = Stubborn()
    assert process.escalation().run(process.sleep) is EscalationStage.UNKILLABLE
    assert process.now_s == pytest.approx(40.0, abs=0.2)
    assert "SIGTERM" in process.notes[0]
    assert "SIGKILL" in process.notes[1]
    assert "kernel" in process.notes[2]


def test_hurrying_skips_the_wait_but_no_stage() -> None:
    process = Stubborn()
    escalation = process.escalation()
    assert [escalation.hurry() for _ in range(4)] == [
        EscalationStage.TERMINATED,
        EscalationStage.KILLED,
        EscalationStage.UNKILLABLE,
        EscalationStage.UNKILLABLE,
    ]
    assert process.signals == [(0, signal.SIGTERM), (0, signal.SIGKILL)]


def test_nothing_is_signalled_when_the_process_is_no_longer_the_same() -> None:
    process = Stubborn()
    polls = iter([False, True])
    escalation = Escalation(
        lambda: next(polls), lambda number: False, process.clock, process.notes.append, Patience(0, 0, 0)
    )
    assert escalation.poll() is EscalationStage.ENDED


def test_a_process_that_lives_but_cannot_be_signalled_is_out_of_reach() -> None:
    process = Stubborn()
    escalation = Escalation(
        lambda: False, lambda number: False, process.clock, process.notes.append, Patience(0, 0, 0)
    )
    assert escalation.poll() is EscalationStage.UNREACHABLE


def test_a_script_that_catches_its_first_stop_is_left_alone_and_terminated_at_the_second() -> None:
    process = Stubborn(dies_of=signal.SIGTERM)
    caught = [0, 1, 0, 2]
    for stage, signals in [(EscalationStage.CAUGHT, []), (EscalationStage.ENDED, [(0, signal.SIGTERM)])]:
        escalation = Escalation(
            process.is_gone,
            process.receive,
            process.clock,
            process.notes.append,
            caught_stops=lambda: caught.pop(0),
        )
        assert escalation.run(lambda _seconds: None) is stage
        assert process.signals == signals
    assert process.notes == ["stop: the script caught this stop too, sending SIGTERM to the process group"]
