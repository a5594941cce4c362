"""Sampling of the machine while a page shows it.

The dashboard queries the driver itself, independently of the runs, so that every GPU is covered. Ten seconds
after the last read the thread ends and NVML is shut down.
"""

import threading
import time
from collections.abc import Callable

import streamlit as st

from harness.device.machine import EMPTY_HISTORY, MachineHistory, MachineSampler

PERIOD_S = 1.0
LINGER_S = 10.0


class MachineWatch:
    """Runs a sampler in its own thread for as long as samples are read."""

    def __init__(
        self,
        opening: Callable[[], MachineSampler] = MachineSampler,
        clock_s: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self._opening = opening
        self._clock_s = clock_s
        self._period_s = period_s
        self._lock = threading.Lock()
        self._viewed_until_s = 0.0
        self._thread: threading.Thread | None = None
        self._machine = EMPTY_HISTORY

    def read(self) -> MachineHistory:
        """Return the latest samples and keep sampling for ten more seconds. Never waits."""
        with self._lock:
            self._viewed_until_s = self._clock_s() + LINGER_S
            if self._thread is None or not self._thread.is_alive():
                self._machine = EMPTY_HISTORY
                self._thread = threading.Thread(target=self._work, name="stepscope-machine", daemon=True)
                self._thread.start()
            return self._machine

    @property
    def thread(self) -> threading.Thread | None:
        """The sampling thread; None while idle."""
        return self._thread

    def _work(self) -> None:
        sampler = self._opening()
        try:
            while self._is_viewed():
                self._machine = sampler.sample()
                time.sleep(self._period_s)
        finally:
            sampler.close()

    def _is_viewed(self) -> bool:
        """Return whether samples were read recently; otherwise drop the thread, so that the next read starts
        another."""
        with self._lock:
            if self._clock_s() < self._viewed_until_s:
                return True
            self._thread = None
            return False


@st.cache_resource(show_spinner=False)
def machine_watch() -> MachineWatch:
    """Return the server's watch, shared by all pages."""
    return MachineWatch()
