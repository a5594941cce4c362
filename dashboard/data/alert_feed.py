"""The alerts of all runs for the notifications of browsers, from one watch in the server."""

import threading
import time
from collections import deque
from collections.abc import Callable

import streamlit as st

from dashboard.data.runs import supervisor
from harness.alerts import AlertWatch, RunAlert
from harness.errors import HomeError
from harness.supervisor import Supervisor

# Tabs that tick at the same time share one poll.
_SHARED_S = 3.0
# A tab that ticks once in a minute, in the background, misses none unless there are more.
_MOST_ALERTS = 50


class AlertFeed:
    """The newest alerts since the feed was created. Thread-safe."""

    def __init__(self, supervisor: Supervisor, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._watch = AlertWatch(supervisor)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._alerts: deque[RunAlert] = deque(maxlen=_MOST_ALERTS)
        self._polled_s = float("-inf")

    def alerts(self) -> list[RunAlert]:
        """Return the alerts, the oldest first. A tab does not wait for the poll of another."""
        if self._lock.acquire(blocking=False):
            try:
                if self._clock_s() - self._polled_s >= _SHARED_S:
                    self._alerts.extend(self._watch.poll())
                    self._polled_s = self._clock_s()
            except HomeError:  # The pages report it.
                pass
            finally:
                self._lock.release()
        return list(self._alerts)


@st.cache_resource(show_spinner=False)
def alert_feed() -> AlertFeed:
    """Return the feed of the dashboard, one for all browser sessions."""
    return AlertFeed(supervisor())
