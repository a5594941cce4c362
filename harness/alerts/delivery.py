"""Delivery to one destination, on a thread of its own: a queue, attempts with a growing pause, and an end."""

import queue
import threading
from collections.abc import Callable

from harness.alerts.alert import RunAlert
from harness.alerts.destinations import DeliveryError, Destination
from harness.closing import Closing
from harness.words import plural

# Pauses before the second and the later attempts: at most a quarter of a minute per alert.
PAUSES_S = (1.0, 2.0, 4.0, 8.0)
_MOST_WAITING = 100
_IDLE_S = 0.5


class Delivery(Closing):
    """Delivers alerts to one destination, in order. `enqueue` never waits. A context manager."""

    def __init__(
        self,
        destination: Destination,
        report: Callable[[str], None],
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        """`report` takes a sentence when deliveries begin to fail and when they succeed again."""
        self._destination = destination
        self._report = report
        self._pauses_s = pauses_s
        self._waiting: queue.Queue[RunAlert] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._is_failing = False
        self._lost = 0
        # A daemon, so that a destination that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="stepscope-alerts", daemon=True)
        self._thread.start()

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
                if not self._is_failing:
                    self._is_failing = True
                    self._report(f"Alerts to {self._destination.name} fail: {error}.{self._plan(error)}")
                if error.is_final or pause_s is None or self._closing.wait(pause_s):
                    return False
            else:
                if self._is_failing:
                    self._is_failing = False
                    self._report(f"Alerts to {self._destination.name} are delivered again.")
                return True
        return False

    def _plan(self, error: DeliveryError) -> str:
        return "" if error.is_final else f" Each one is tried {len(self._pauses_s) + 1} times."
