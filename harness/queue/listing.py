"""The queue as rows for a list."""

from typing import NamedTuple

from harness.errors import SettingError
from harness.queue.adding import needs_worker
from harness.queue.files import queue_log
from harness.queue.starting import read_work
from harness.records.queue import QueueRow, QueueState
from harness.settings.recorded import read_recorded
from harness.store.home import Home
from harness.supervisor.summary import subject_of


class QueueLine(NamedTuple):
    """An entry in a list."""

    entry_id: int
    position: int
    # The name of the run; None: it gets one at its start.
    name: str | None
    # The model or script; None if this version cannot read it.
    subject: str | None
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
    lines = tuple(map(_line, log.entries()))
    return QueueView(lines, log.is_paused(), bool(lines) and needs_worker(home))


def _line(row: QueueRow) -> QueueLine:
    try:
        script = read_work(row).script
        subject = subject_of(script, None if script else read_recorded(row.settings))
    except SettingError:
        subject = None
    state = QueueState(row.state)
    reason = f"starting on {row.starting_on}" if row.starting_on else row.reason
    if not reason:
        reason = "paused on request" if state is QueueState.PAUSED else "waits for its turn"
    return QueueLine(
        row.entry_id,
        row.position,
        row.name,
        subject,
        row.device,
        bool(row.is_forced),
        state,
        reason,
        row.added_unix_ns,
    )
