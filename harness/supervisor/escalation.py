"""Stopping a process: a state machine with bounded waits.

It begins after the stop command; 10 s later it sends SIGTERM to the process group, 20 s after that SIGKILL,
and 10 s after that the process counts as unkillable (it hangs in the kernel, in a driver or on a disk). If
the command could not be sent, SIGTERM is sent at once. A script that catches a stop and goes on is not
terminated the first time, and at once the second time. Clock, signals and the check of the process are
injected, so tests replay histories without waiting.
"""

import signal
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from harness.analysis.log_health import signal_note


class EscalationStage(StrEnum):
    """The stage of an escalation."""

    REQUESTED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"
    ENDED = "ended"
    # The script caught the stop and goes on.
    CAUGHT = "caught"
    # It does not end on SIGKILL: it hangs in the kernel, in a driver or on a disk.
    UNKILLABLE = "unkillable"
    # Signals cannot reach it: it is in another container, or on another machine.
    UNREACHABLE = "unreachable"

    @property
    def is_last(self) -> bool:
        """True for a final stage."""
        stage = EscalationStage
        return self in (stage.ENDED, stage.CAUGHT, stage.UNKILLABLE, stage.UNREACHABLE)


class Patience(NamedTuple):
    """The time that each stage waits for the process to end, in seconds."""

    request_s: float = 10.0
    terminated_s: float = 20.0
    killed_s: float = 10.0


POLL_S = 0.1


class Escalation:
    """One attempt to stop one process. `poll` advances it and never waits; `run` polls until it is over."""

    def __init__(
        self,
        is_gone: Callable[[], bool],
        send_signal: Callable[[signal.Signals], bool],
        clock: Callable[[], float],
        note: Callable[[str], None],
        patience: Patience = Patience(),  # noqa: B008  (immutable)
        undelivered: str | None = None,
        caught_stops: Callable[[], int] = lambda: 0,
    ) -> None:
        """`send_signal` signals the process group and returns whether it existed; `note` takes one line per
        action. `undelivered` is the reason that the stop command could not be sent. `caught_stops` returns
        how many stops the script has caught, 0 while this one is not among them."""
        self._has_ended = is_gone
        self._send_signal = send_signal
        self._clock = clock
        self._note = note
        self._patience = patience
        self._undelivered = undelivered
        self._caught_stops = caught_stops
        self.stage = EscalationStage.REQUESTED
        self._deadline_s = clock() + (patience.request_s if undelivered is None else 0.0)

    def poll(self) -> EscalationStage:
        """Check the process, and advance by one stage when the time of the current one is over."""
        if self.stage.is_last:
            return self.stage
        if self._has_ended():
            self.stage = EscalationStage.ENDED
        elif self._clock() >= self._deadline_s:
            self._advance()
        elif self.stage is EscalationStage.REQUESTED and (caught := self._caught_stops()):
            if caught == 1:
                self.stage = EscalationStage.CAUGHT
            else:
                self._terminate("the script caught this stop too")
        return self.stage

    def hurry(self) -> EscalationStage:
        """End the wait of the current stage."""
        self._deadline_s = self._clock()
        return self.poll()

    def run(self, sleep: Callable[[float], None]) -> EscalationStage:
        """Poll until the process has ended or cannot be ended, which takes the stages' time at most."""
        while not self.poll().is_last:
            sleep(POLL_S)
        return self.stage

    def _advance(self) -> None:
        if self.stage is EscalationStage.REQUESTED:
            reason = f"no end within {self._patience.request_s:g} s of the stop command"
            if self._undelivered is not None:
                reason = f"the stop command could not be sent ({self._undelivered.rstrip('.')})"
            self._terminate(reason)
        elif self.stage is EscalationStage.TERMINATED:
            reason = f"no end within {self._patience.terminated_s:g} s of SIGTERM"
            self._signal(signal.SIGKILL, reason, EscalationStage.KILLED, self._patience.killed_s)
        else:
            self._note(
                f"stop: no end within {self._patience.killed_s:g} s of SIGKILL; it hangs in the kernel"
            )
            self.stage = EscalationStage.UNKILLABLE

    def _terminate(self, reason: str) -> None:
        self._signal(signal.SIGTERM, reason, EscalationStage.TERMINATED, self._patience.terminated_s)

    def _signal(self, number: signal.Signals, reason: str, stage: EscalationStage, patience_s: float) -> None:
        self._note(signal_note(reason, number.name))
        if not self._send_signal(number):
            self.stage = EscalationStage.ENDED if self._has_ended() else EscalationStage.UNREACHABLE
            return
        self.stage = stage
        self._deadline_s = self._clock() + patience_s
