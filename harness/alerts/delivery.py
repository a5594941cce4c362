"""Delivery to one destination, on a thread of its own: a queue, attempts with a growing pause, and an end."""

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.alerts.alert import RunAlert
from harness.alerts.destinations import DeliveryError, Destination
from harness.closing import Closing
from harness.words import plural

# Pauses before the second and the later attempts: at most a quarter of a minute per alert.
PAUSES_S = (1.0, 2.0, 4.0, 8.0)
_MOST_WAITING = 100
_IDLE_S = 0.5


class DeliveryFailure(NamedTuple):
    """The failed attempts since the last success.

    Attributes:
        since_unix_ns: the time of the first one.
        newest_unix_ns: the time of the newest one.
        reason: that of the newest one, as part of a sentence.
        remedy: what a person can do, in a sentence.
    """

    since_unix_ns: int
    newest_unix_ns: int
    reason: str
    remedy: str


class DeliveryStatus(NamedTuple):
    """The state of the deliveries to one destination.

    Attributes:
        destination: its name, without a secret.
        failure: None while deliveries succeed, and before the first one.
        delivered: the number of alerts.
        delivered_unix_ns: the time of the newest one; None without one.
        lost: the number of alerts that were given up.
        waiting: the number of alerts that wait, without the one under way.
    """

    destination: str
    failure: DeliveryFailure | None = None
    delivered: int = 0
    delivered_unix_ns: int | None = None
    lost: int = 0
    waiting: int = 0


class Delivery(Closing):
    """Delivers alerts to one destination, in order. `enqueue` never waits. A context manager."""

    def __init__(
        self,
        destination: Destination,
        report: Callable[[str], None],
        pauses_s: tuple[float, ...] = PAUSES_S,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`report` takes a sentence when deliveries begin to fail and when they succeed again."""
        self._destination = destination
        self._report = report
        self._pauses_s = pauses_s
        self._waiting: queue.Queue[RunAlert] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._unix_ns = unix_ns
        self._lost = 0
        # Replaced as a whole by the delivering thread.
        self._status = DeliveryStatus(destination.name)
        # A daemon, so that a destination that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="stepscope-alerts", daemon=True)
        self._thread.start()

    @property
    def status(self) -> DeliveryStatus:
        """The state of the deliveries, for any thread."""
        return self._status._replace(lost=self._lost, waiting=self._waiting.qsize())

    def enqueue(self, alert: RunAlert) -> None:
        """Deliver `alert` later; it is lost when a hundred are waiting already."""
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._lost += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what waits, for at most `timeout_s`, without a pause for a failing one. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(timeout_s)
        lost = self._lost + self._waiting.qsize() + self._thread.is_alive()
        if lost:
            self._report(f"{plural(lost, 'alert')} to {self._destination.name} could not be delivered.")

    def _work(self) -> None:
        while True:
            try:
                alert = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            if not self._deliver(alert):
                self._lost += 1

    def _deliver(self, alert: RunAlert) -> bool:
        """Return whether the alert was delivered, after at most `len(pauses_s) + 1` attempts."""
        for pause_s in (*self._pauses_s, None):
            try:
                self._destination.send(alert)
            except DeliveryError as error:
                if self._note_failure(error):
                    self._report(f"Alerts to {self._destination.name} fail: {error}.{self._plan(error)}")
                if error.is_final or pause_s is None or self._closing.wait(pause_s):
                    return False
            else:
                if self._note_success():
                    self._report(f"Alerts to {self._destination.name} are delivered again.")
                return True
        return False

    def _note_failure(self, error: DeliveryError) -> bool:
        """Return whether it is the first one."""
        now_unix_ns, before = self._unix_ns(), self._status.failure
        since_unix_ns = now_unix_ns if before is None else before.since_unix_ns
        failure = DeliveryFailure(since_unix_ns, now_unix_ns, str(error), error.remedy)
        self._status = self._status._replace(failure=failure)
        return before is None

    def _note_success(self) -> bool:
        """Return whether the attempt before failed."""
        before = self._status
        self._status = before._replace(
            failure=None, delivered=before.delivered + 1, delivered_unix_ns=self._unix_ns()
        )
        return before.failure is not None

    def _plan(self, error: DeliveryError) -> str:
        return "" if error.is_final else f" Each one is tried {len(self._pauses_s) + 1} times."
