"""The process that starts the runs of the queue, `stepscope queue run`. It ends when nothing waits."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from harness.closing import Closing
from harness.errors import HomeError, SettingError, StepscopeError, UsageError
from harness.predict.answer import Answer, Target
from harness.queue.files import queue_log, worker_lock
from harness.queue.machine import Machine
from harness.queue.occupancy import active_runs, occupied
from harness.queue.placing import QueueDevice, Waiting, plan
from harness.queue.starting import check_work, interrupted_start, read_work, start_entry
from harness.records.queue import QueueRow, QueueState
from harness.settings import Settings
from harness.store.liveness import Liveness
from harness.supervisor import Supervisor

TICK_S = 1.0
# Reasons are written no more often: free memory changes all the time.
_REASONS_S = 2.0

# An entry of which the cause is removed stays blocked until a person resumes it.
_RESUME = "Then resume the entry."


class Predicting(Protocol):
    """Predicts the memory of runs; `harness.predict.asking.Predictor` implements it."""

    def request(self, settings: Settings, target: Target) -> Answer | None:
        """Return the prediction; None while it is being computed."""
        ...


class QueueWorker(Closing):
    """Starts the runs of one home's queue. One worker at a time."""

    def __init__(
        self,
        supervisor: Supervisor,
        machine: Machine,
        predictor: Predicting,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._supervisor = supervisor
        self._home = supervisor.home
        self._log = queue_log(self._home)
        self._machine = machine
        self._predictor = predictor
        self._clock_s = clock_s
        self._sleep = sleep
        self._liveness: Liveness | None = None
        self._explained_s = -_REASONS_S

    def run(self) -> bool:
        """Start runs until nothing waits; false if another worker does so already. Raises StepscopeError when
        the queue is invalid."""
        has_run = False
        while self._hold():
            has_run = True
            try:
                while self.tick():
                    self._liveness_beat()
                    self._sleep(TICK_S)
            finally:
                self.close()
            # What was added before the lock was released has started no worker.
            if not self._has_work():
                break
        return has_run

    def tick(self) -> bool:
        """Start what can start now; return whether anything waits. A disk that is full, or a home that cannot
        be read for a moment, is tried again."""
        try:
            return self._advance()
        except HomeError:
            return True

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._liveness is not None:
            self._liveness.close()
            self._liveness = None

    def _hold(self) -> bool:
        self._home.check_writable()
        try:
            self._liveness = Liveness.hold(worker_lock(self._home))
        except BlockingIOError:
            return False
        return True

    def _liveness_beat(self) -> None:
        assert self._liveness is not None
        self._liveness.beat()

    def _has_work(self) -> bool:
        try:
            return bool(self._waiting_rows())
        except HomeError:
            return False

    def _waiting_rows(self) -> list[QueueRow]:
        """Return the entries that a worker is needed for."""
        is_paused = self._log.is_paused()
        rows = self._log.entries()
        return [r for r in rows if r.starting_on or (r.state == QueueState.WAITING and not is_paused)]

    def _advance(self) -> bool:
        """Complete interrupted starts, then start what can start. Raises HomeError, LogError."""
        while True:
            rows = self._waiting_rows()
            if any(row.starting_on for row in rows):
                self._complete_starts(rows)
                continue
            if not rows or not self._start_one(rows):
                return bool(rows)

    def _complete_starts(self, rows: list[QueueRow]) -> None:
        for row in rows:
            if row.starting_on is None:
                continue
            folder = interrupted_start(self._home, row)
            if folder is None:
                self._log.cancel_start(row.entry_id)
            else:
                self._log.end_start(row.entry_id, folder.run_id, row.starting_on)

    def _start_one(self, rows: list[QueueRow]) -> bool:
        """Start at most one entry, and explain why the others wait; return whether one was started."""
        waiting = list(filter(None, map(self._prepare, rows)))
        devices = self._devices()
        result = plan(waiting, devices, self._predictor.request)
        for entry_id, reason in result.blocked.items():
            self._set_blocked(entry_id, reason)
        if result.start is None:
            self._explain(rows, result.waiting)
            return False
        row = next(row for row in rows if row.entry_id == result.start.entry_id)
        return self._start(row, result.start.device)

    def _devices(self) -> list[QueueDevice]:
        """Return the devices with the runs on them, and forget the placements of runs that are over."""
        runs = active_runs(self._home, self._supervisor)
        placed = {row.run_id: row.device for row in self._log.placements()}
        over = sorted(placed.keys() - {run.run_id for run in runs})
        if over:
            self._log.forget_placements(over)
        return occupied(self._machine.devices(), runs, placed)

    def _explain(self, rows: list[QueueRow], reasons: dict[int, str]) -> None:
        """Write why entries wait, where that has changed."""
        now_s = self._clock_s()
        if now_s - self._explained_s < _REASONS_S:
            return
        self._explained_s = now_s
        changed = {row.entry_id: reasons.get(row.entry_id, row.reason) for row in rows}
        changed = {row.entry_id: changed[row.entry_id] for row in rows if changed[row.entry_id] != row.reason}
        if changed:
            self._log.explain(changed)

    def _start(self, row: QueueRow, device: QueueDevice) -> bool:
        """Start an entry; return whether that changed the queue. An entry that cannot start as it is becomes
        blocked; for any other reason (a full disk, no more processes) it is tried again."""
        if not self._log.begin_start(row.entry_id, device.selector):
            return True  # Removed or paused meanwhile.
        try:
            folder = start_entry(self._supervisor, row, device)
        except UsageError as error:
            self._log.cancel_start(row.entry_id)
            self._set_blocked(row.entry_id, f"{error} {_RESUME}")
            return True
        except StepscopeError as error:
            self._log.cancel_start(row.entry_id)
            self._log.explain({row.entry_id: f"could not start: {error}"})
            return False
        self._log.end_start(row.entry_id, folder.run_id, device.selector)
        return True

    def _prepare(self, row: QueueRow) -> Waiting | None:
        """Return the entry for the plan; None for one that cannot start, which is then blocked."""
        try:
            work = read_work(row)
            check_work(work)
        except SettingError as error:
            self._set_blocked(row.entry_id, f"{error} {_RESUME}")
            return None
        title = row.name or work.subject
        return Waiting(row.entry_id, title, row.device, bool(row.is_forced), work.settings)

    def _set_blocked(self, entry_id: int, reason: str) -> None:
        with suppress(UsageError):  # It was removed meanwhile.
            self._log.set_state(entry_id, QueueState.BLOCKED, reason)
