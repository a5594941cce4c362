"""Leak verdicts of a simulated run, from the real leak detector."""

from collections.abc import Sequence

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.records.run import StepRow
from harness.settings import Settings
from harness.store.inserts import Row
from harness.watch.jobs.leaks import HostReading, LeakWatch, Readings

_JUDGE_EVERY_NS = 1_000_000_000


class SimulatedLeakWatch:
    """Runs the detector once per simulated second, and buffers the rows."""

    def __init__(self, settings: Settings, total_bytes: int | None) -> None:
        self._settings = settings
        self._total_bytes = total_bytes
        self._now: StepRow | None = None
        self._due_ns = 0
        self._buffer: list[Row] = []
        self._readings = Readings()
        self._watch = LeakWatch(
            self._buffer.append,
            lambda: 0 if self._now is None else self._now.t_ns,
            lambda: 0 if self._now is None else self._now.step,
            LeakDetector(on_cpu=False),
            self._readings,
            lambda: HostReading(None, None),
            self._limits,
        )

    def rows(self, steps: Sequence[StepRow], settings: Settings) -> list[Row]:
        """Return the verdicts and events of these steps under `settings`."""
        self._settings = settings
        begin = 0
        for end, step in enumerate(steps, 1):
            if step.t_ns >= self._due_ns:
                self._readings.add_rows(steps[begin:end])
                begin, self._now, self._due_ns = end, step, step.t_ns + _JUDGE_EVERY_NS
                self._watch.judge()
        self._readings.add_rows(steps[begin:])
        rows = list(self._buffer)
        self._buffer.clear()
        return rows

    def _limits(self) -> Limits:
        cap = self._settings.memory_cap_bytes
        return Limits(self._total_bytes if cap is None else cap, None)
