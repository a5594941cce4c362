"""The text that Prometheus scrapes, from one cached reading of the runs."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from harness.metrics.families import families
from harness.metrics.figures import RunFigures, read_figures
from harness.supervisor import Supervisor
from harness.supervisor.activity import active_folders

# A run that ended is exposed for this long, so that its last figures and its state are scraped.
ENDED_S = 900.0
# Scrapes within this time of each other share one reading.
SHARED_S = 1.0


class Scrape(NamedTuple):
    """The response to one scrape."""

    content_type: str
    body: bytes


class Exposition(Collector):
    """The metrics of all live and recently ended runs of a supervisor's home. Thread-safe."""

    def __init__(
        self,
        supervisor: Supervisor,
        unix_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unix_s` is wall time, `clock_s` the time that limits readings."""
        self._supervisor = supervisor
        self._unix_s = unix_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._runs: list[RunFigures] = []
        self._read_s = float("-inf")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def scrape(self, accept: str) -> Scrape:
        """Return the metrics in the format that the header `Accept` requests. Raises HomeError."""
        encode, content_type = choose_encoder(accept)
        return Scrape(content_type, encode(self._registry))

    def describe(self) -> Iterable[Metric]:
        """Return no metric: their names depend on the runs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. Raises HomeError."""
        with self._lock:
            if self._clock_s() - self._read_s >= SHARED_S:
                self._runs = self._read()
                self._read_s = self._clock_s()
            return list(families(self._runs))

    def _read(self) -> list[RunFigures]:
        since_unix_s = self._unix_s() - ENDED_S
        before = {run.summary.path: run for run in self._runs}
        runs = []
        for folder in active_folders(self._supervisor.home.runs(), since_unix_s):
            summary = self._supervisor.summary(folder)
            ended_unix_ns = summary.ended_unix_ns
            if ended_unix_ns is None or ended_unix_ns / 1e9 >= since_unix_s:
                previous = before.get(folder.path)
                is_unchanged = (
                    summary.status.state.is_over and previous is not None and previous.summary == summary
                )
                runs.append(
                    previous if is_unchanged and previous is not None else read_figures(folder, summary)
                )
        return runs
