"""The queue as rows for a list."""

from typing import NamedTuple

from harness.errors import SettingError
from harness.queue.adding import needs_worker
from harness.queue.files import queue_log
from harness.queue.starting import read_work
from harness.records.queue import QueueRow, QueueState
from harness.store.home import Home


class QueueLine(NamedTuple):
    """An entry in a list."""

    entry_id: int
    position: int
    # The name of the run; None: it gets one at its start.
    name: str | None
    # The model, or the script with its arguments; None if this version cannot read it.
    subject: str | None
    is_script: bool
    device: str
    is_forced: bool
    state: QueueState
    # Why it has not started.
    reason: str
    added_unix_ns: int


class QueueView(NamedTuple):
    """The queue of a home."""

    lines: tuple[QueueLine, ...]
    is_paused: bool
    # True if entries wait and no worker is there to start them.
    needs_worker: bool


def view_queue(home: Home) -> QueueView:
    """Return the queue of the home. Raises HomeError, LogError."""
    log = queue_log(home)
    is_paused = log.is_paused()
    lines = tuple(_line(row, is_queue_paused=is_paused) for row in log.entries())
    return QueueView(lines, is_paused, bool(lines) and needs_worker(home))


def _line(row: QueueRow, *, is_queue_paused: bool) -> QueueLine:
    try:
        subject = read_work(row).subject
    except SettingError:
        subject = None
    return QueueLine(
        row.entry_id,
        row.position,
        row.name,
        subject,
        row.script is not None,
        row.device,
        bool(row.is_forced),
        QueueState(row.state),
        _reason(row, is_queue_paused=is_queue_paused),
        row.added_unix_ns,
    )


def _reason(row: QueueRow, *, is_queue_paused: bool) -> str:
    state = QueueState(row.state)
    if row.starting_on:
        return f"starting on {row.starting_on}"
    if state is QueueState.WAITING and is_queue_paused:
        return "the queue is paused"
    if row.reason:
        return row.reason
    return "paused on request" if state is QueueState.PAUSED else "waits for its turn"
