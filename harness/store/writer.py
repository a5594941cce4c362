"""The log's writer: a thread that takes rows from the training process without making it wait or fail.

The thread polls plain deques, because waking another thread takes more time of the training thread than the
row does. Rows that cannot be written are buffered and retried; when the buffer is full, the oldest steps and
samples are dropped and counted, and a GAP event reports them. `harness.store.log_keeper` handles a damaged or
deleted log.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis.log_health import LOST_ROWS
from harness.closing import Closing
from harness.records.run import (
    EventKind,
    EventRow,
    RunRow,
    RunState,
    Severity,
    StepRow,
)
from harness.store.inserts import Row, StateChange
from harness.store.log_keeper import LogKeeper, OutageReport, no_report
from harness.store.outbox import Outbox
from harness.store.pending import Pending
from harness.store.safe_logger import SafeLogger

_LOGGER = SafeLogger(logging.getLogger(__name__))
# Between two polls. Each takes the interpreter's lock from training, so fewer polls with more rows are
# cheaper.
POLL_S = 0.25
_DURABLE_WAIT_S = 2.0


class _Barrier:
    """A request for a notification when everything put before it is written or lost."""

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.reached = threading.Event()
        self.is_written = False


class LogWriter(Closing):
    """Writes a run's log from its own thread. A context manager; every method may be called from any thread.
    In a forked child nothing is written and no call waits."""

    def __init__(
        self,
        path: Path,
        run: RunRow,
        feed: Callable[[], Sequence[StepRow]],
        clock_ns: Callable[[], int],
        poll_s: float = POLL_S,
        max_pending_steps: int = 20_000,
        locate: Callable[[], Path | None] | None = None,
        report: OutageReport = no_report,
        outbox: Outbox | None = None,
    ) -> None:
        """Create the log and start the thread.

        `feed` is called on the writer's thread and returns the steps finished since the last call, strictly
        increasing; `clock_ns` returns nanoseconds since the run's start; `locate` returns the log's current
        path, None when its folder was deleted; `report` takes the start and reason of an outage; `outbox` has
        the rows that were put before there was a writer. Raises HomeError when there can be no log at `path`.
        """
        outbox = outbox or Outbox()
        # Enqueues a row for the next poll; never waits. Scripts call it for each number of each step.
        self.put: Callable[[Row], None] = outbox.items.append
        self._keeper = LogKeeper(path, run, clock_ns, locate or (lambda: path), report, outbox)
        self._inbox: deque[Row | StateChange | _Barrier] = outbox.items
        self._feed = feed
        self._clock_ns = clock_ns
        self._poll_s = poll_s
        self._pending = Pending(max_pending_steps)
        self._barriers: list[_Barrier] = []
        self._wake = threading.Event()
        self._closing = False
        self._give_up_at = 0.0
        self._pid = os.getpid()
        # A daemon, so that a thread that hangs on a broken disk does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="stepscope-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put_durable(self, row: Row, timeout_s: float = _DURABLE_WAIT_S) -> bool:
        """Enqueue a row and wait, at most `timeout_s`, until it is on disk; return whether it is."""
        return self._wait(row, durable=True, timeout_s=timeout_s)

    def set_state(
        self, state: RunState, message: str, timeout_s: float = _DURABLE_WAIT_S, label: str | None = None
    ) -> bool:
        """Record `state` in the run's row and as an event, in one durable transaction; return whether it is
        on disk.

        `label` is the text of the chart's marker, by default the state's name.
        """
        return self._change_state(state, message, None, timeout_s, label)

    def finish(
        self,
        state: RunState,
        message: str,
        ended_unix_ns: int,
        timeout_s: float = _DURABLE_WAIT_S,
        *,
        has_event: bool = False,
    ) -> bool:
        """Like `set_state`, for the run's end; `has_event`: another event already reports the outcome."""
        return self._change_state(state, message, ended_unix_ns, timeout_s, None, not has_event)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all rows and steps so far can be read; return whether they can."""
        return self._wait(durable=False, timeout_s=timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write the rest, close the log and end the thread; return whether it ended in time. Idempotent.

        A failing write is retried for half of `timeout_s`.
        """
        if os.getpid() != self._pid:
            return True
        if not self._closing:
            atexit.unregister(self.close)
            self._give_up_at = time.monotonic() + timeout_s / 2
            self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _change_state(
        self,
        state: RunState,
        message: str,
        ended: int | None,
        timeout_s: float,
        label: str | None,
        puts_event: bool = True,
    ) -> bool:
        severe = state in (RunState.FAILED, RunState.OUT_OF_MEMORY, RunState.KILLED, RunState.LOST)
        event = EventRow(
            t_ns=self._clock_ns(),
            step=self._pending.last_step,
            kind=EventKind.STATE,
            severity=Severity.ERROR if severe else Severity.INFO,
            label=label or state.replace("_", " "),
            message=message,
            detail="{}",
            command_id=None,
        )
        change = StateChange(state, message, ended, event if puts_event else None)
        return self._wait(change, durable=True, timeout_s=timeout_s)

    def _wait(self, *items: Row | StateChange, durable: bool, timeout_s: float) -> bool:
        barrier = _Barrier(durable)
        # Together: a poll between them would write an item in a transaction that is not durable.
        self._inbox.extend((*items, barrier))
        if os.getpid() != self._pid or not self._thread.is_alive() or self._keeper.has_given_up:
            return False
        self._wake.set()
        return barrier.reached.wait(timeout_s) and barrier.is_written

    def _work(self) -> None:
        """Run the thread: gather, write, sleep, until it is closed."""
        try:
            while True:
                closing = self._closing
                self._gather()
                written = self._write()
                if closing and (written or time.monotonic() >= self._give_up_at):
                    break
                self._wake.wait(self._poll_s if closing else self._keeper.pause_s(self._poll_s))
                self._wake.clear()
            if not written or self._keeper.has_given_up:
                _LOGGER.error(LOST_ROWS, self._pending)
        finally:
            self._keeper.close()

    def _gather(self) -> None:
        inbox = self._inbox
        changes: list[StateChange] = []
        while inbox:
            item = inbox.popleft()
            if isinstance(item, _Barrier):
                self._barriers.append(item)
            elif isinstance(item, StateChange):
                changes.append(item)
            else:
                self._pending.add(item)
        try:
            steps = self._feed()
        except RuntimeError as error:  # Device times can no longer be read, as after a device fault.
            _LOGGER.exception("No more steps can be logged.")
            self._feed = _no_steps
            self._pending.add(self._broken_feed(error))
            steps = ()
        except MemoryError:  # Out of memory at this moment: the steps wait for the next poll.
            steps = ()
        if steps:
            self._pending.add_steps(steps)
        step = self._pending.last_step  # Known only now: steps arrive after rows.
        self._pending.states += [c._replace(event=c.event and c.event._replace(step=step)) for c in changes]

    def _broken_feed(self, error: RuntimeError) -> EventRow:
        return EventRow(
            t_ns=self._clock_ns(),
            step=self._pending.last_step,
            kind=EventKind.GAP,
            severity=Severity.ERROR,
            label="no more steps",
            message=f"Steps can no longer be read and are missing from here on: {error}",
            detail="{}",
            command_id=None,
        )

    def _write(self) -> bool:
        """Write what is pending; return whether nothing is left to write."""
        self._keeper.follow_files(self._pending, self._is_rescue_over)
        if self._keeper.has_given_up:
            self._pending.clear()
            self._release(is_written=False)
            return True
        if self._pending.is_empty and not self._barriers:
            return True
        durable = any(barrier.durable for barrier in self._barriers)
        if not self._keeper.write(self._pending, durable, self._is_rescue_over):
            return False
        self._release(is_written=True)
        return True

    def _release(self, is_written: bool) -> None:
        for barrier in self._barriers:
            barrier.is_written = is_written
            barrier.reached.set()
        self._barriers.clear()

    def _is_rescue_over(self) -> bool:
        return self._closing and time.monotonic() >= self._give_up_at


def _no_steps() -> Sequence[StepRow]:
    return ()
