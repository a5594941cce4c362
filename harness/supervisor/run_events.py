"""The events of a run for a list of them: those of its log, and its outcome."""

from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.store.reader import LogReader
from harness.supervisor.summary import RunSummary

_REGULAR = frozenset({RunState.FINISHED, RunState.STOPPED})


def read_events(reader: LogReader, summary: RunSummary) -> list[EventRow]:
    """Return the events, of a run that is over with its outcome as the last one: a log lacks it after a kill,
    or if its disk was full to the end. Raises LogError."""
    run, events = reader.run(), [event for _, event in reader.events()]
    state = summary.status.state
    if not state.is_over or run.state in _OVER:
        return events
    ended_ns = None if summary.ended_unix_ns is None else summary.ended_unix_ns - run.started_unix_ns
    newest = events[-1] if events else None
    t_ns = max(ended_ns or 0, 0 if newest is None else newest.t_ns)
    step = max(summary.last_step or 0, 0 if newest is None else newest.step)
    severity = Severity.INFO if state in _REGULAR else Severity.ERROR
    label, message = state.value.replace("_", " "), summary.status.message
    return [*events, EventRow(t_ns, step, EventKind.STATE, severity, label, message, "{}", None)]


_OVER = frozenset(state.value for state in RunState if state.is_over)
