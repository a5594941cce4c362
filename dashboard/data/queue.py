"""The queue of runs: its entries, additions, and changes."""

import os
import sys
from collections.abc import Callable

from dashboard.data.runs import home, supervisor
from harness.errors import StepscopeError
from harness.queue.adding import add_model, ensure_worker
from harness.queue.files import queue_log
from harness.queue.listing import QueueView, view_queue
from harness.records.queue import QueueState
from harness.settings import Settings
from harness.store.queue_log import QueueLog


def view() -> QueueView:
    """Return the queue. Raises StepscopeError."""
    return view_queue(home())


def add(settings: Settings, name: str | None, request_id: str) -> None:
    """Append a run, once per `request_id`, and start the worker if there is none. Raises StepscopeError."""
    supervisor().check_may_write()
    add_model(home(), settings, name, request_id=request_id)
    ensure_worker(home())


def remove(entry_id: int) -> None:
    """Remove an entry. Raises StepscopeError."""
    _change(lambda log: log.remove(entry_id))


def move(entry_id: int, position: int) -> None:
    """Move an entry to a position, from 1. Raises StepscopeError."""
    _change(lambda log: log.move(entry_id, position))


def pause(entry_id: int | None = None) -> None:
    """Pause an entry, or the whole queue. Raises StepscopeError."""
    if entry_id is None:
        _change(lambda log: log.pause(is_paused=True))
    else:
        _change(lambda log: log.set_state(entry_id, QueueState.PAUSED))


def resume(entry_id: int | None = None) -> None:
    """Resume an entry that is paused or blocked, or the whole queue. Raises StepscopeError."""
    if entry_id is None:
        _change(lambda log: log.pause(is_paused=False))
    else:
        _change(lambda log: log.set_state(entry_id, QueueState.WAITING))


def force(entry_id: int) -> None:
    """Let an entry start although it is predicted not to fit. Raises StepscopeError."""
    _change(lambda log: log.force(entry_id))


def continue_queue() -> None:
    """Start the worker if entries wait and there is none, as after a reboot. Failures are printed."""
    if supervisor().is_read_only or not os.path.isdir(home().path):
        return
    try:
        ensure_worker(home())
    except StepscopeError as error:
        print(f"stepscope: the queue does not continue: {error}", file=sys.stderr, flush=True)


def _change(act: Callable[[QueueLog], None]) -> None:
    supervisor().check_may_write()
    act(queue_log(home()))
    ensure_worker(home())
