"""Alerts, and their causes in the events and the outcome of a run."""

from enum import StrEnum
from typing import NamedTuple

from harness.analysis.state import RunStatus
from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.words import clip, printable

# Phones and desktops cut longer texts.
_LONGEST_TEXT = 500


class AlertKind(StrEnum):
    """The kinds of alert."""

    OOM = "oom"
    LEAK = "leak"
    STALL = "stall"
    NAN = "nan"
    FINISHED = "finished"
    FAILED = "failed"
    # Killed by a signal, or gone without a trace.
    LOST = "lost"

    @property
    def heading(self) -> str:
        """The kind in words."""
        return _TITLES[self]

    @property
    def is_bad(self) -> bool:
        """False for the regular end of a run."""
        return self is not AlertKind.FINISHED


_TITLES = {
    AlertKind.OOM: "Out of memory",
    AlertKind.LEAK: "Memory leak",
    AlertKind.STALL: "Stalled",
    AlertKind.NAN: "Loss not finite",
    AlertKind.FINISHED: "Finished",
    AlertKind.FAILED: "Failed",
    AlertKind.LOST: "Lost",
}
_EVENTS = {
    EventKind.OOM: AlertKind.OOM,
    EventKind.LEAK: AlertKind.LEAK,
    EventKind.STALL: AlertKind.STALL,
    EventKind.NON_FINITE_LOSS: AlertKind.NAN,
}
# A person who stops a run knows it.
_OUTCOMES = {
    RunState.FINISHED: AlertKind.FINISHED,
    RunState.OUT_OF_MEMORY: AlertKind.OOM,
    RunState.FAILED: AlertKind.FAILED,
    RunState.KILLED: AlertKind.LOST,
    RunState.LOST: AlertKind.LOST,
}


class RunAlert(NamedTuple):
    """One alert. Alerts of one cause have the same `key`."""

    key: str
    kind: AlertKind
    run_id: str
    # The run's name.
    run: str
    # One line, which begins with the title of the kind.
    text: str


def alert_of_event(run_id: str, run: str, number: int, event: EventRow) -> RunAlert | None:
    """Return the alert of an event, None for one that needs no attention. `number` is the event's id. Only
    the first loss that is not finite is an alert: with fp16 they are part of training."""
    try:
        kind = _EVENTS.get(EventKind(event.kind))
    except ValueError:
        return None
    if kind is None or event.severity == Severity.INFO:
        return None
    cause = "loss" if kind is AlertKind.NAN else str(number)
    return _alert(f"{run_id}:{kind}:{cause}", kind, run_id, run, event.message)


def alert_of_outcome(run_id: str, run: str, status: RunStatus, *, has_oom_event: bool) -> RunAlert | None:
    """Return the alert of a run's end; None if it was requested, or its event is an alert already."""
    kind = _OUTCOMES.get(status.state)
    if kind is None or (kind is AlertKind.OOM and has_oom_event):
        return None
    return _alert(f"{run_id}:end", kind, run_id, run, status.message)


def alert_of_silence(run_id: str, run: str, status: RunStatus, last_step: int | None) -> RunAlert:
    """Return the alert of a live process without a heartbeat, which cannot write an event itself."""
    return _alert(f"{run_id}:stall:step {last_step}", AlertKind.STALL, run_id, run, status.message)


def _alert(key: str, kind: AlertKind, run_id: str, run: str, message: str) -> RunAlert:
    text = clip(printable(f"{kind.heading}, {run}: {message}"), _LONGEST_TEXT)
    return RunAlert(key, kind, run_id, run, text)
