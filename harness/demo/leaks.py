"""What the leak detector says about a simulated run: the real one, fed with the simulated rows."""

from collections.abc import Sequence

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.observers.leaks import HostReading, LeakWatch, Readings
from harness.records import StepRow
from harness.settings import Settings
from harness.store.inserts import Row

_JUDGE_EVERY_NS = 1_000_000_000


class LeakTeller:
    """Judges once a simulated second. It is a journal, too: what the watch puts is kept until it is told."""

    def __init__(self, settings: Settings, total_bytes: int | None) -> None:
        self._settings = settings
        self._total_bytes = total_bytes
        self._now: StepRow | None = None
        self._due_ns = 0
        self._told: list[Row] = []
        self._readings = Readings()
        self._watch = LeakWatch(
            LeakDetector(on_cpu=False),
            self._readings,
            lambda: HostReading(None, None),
            self._limits,
            self,
            lambda: 0 if self._now is None else self._now.t_ns,
            lambda: 0 if self._now is None else self._now.step,
        )

    def rows(self, steps: Sequence[StepRow], settings: Settings) -> list[Row]:
        """The verdicts and events that fall into these steps, taken under `settings`."""
        self._settings = settings
        begin = 0
        for end, step in enumerate(steps, 1):
            if step.t_ns >= self._due_ns:
                self._readings.take(steps[begin:end])
                begin, self._now, self._due_ns = end, step, step.t_ns + _JUDGE_EVERY_NS
                self._watch.judge()
        self._readings.take(steps[begin:])
        told, self._told = self._told, []
        return told

    def put(self, row: Row) -> None:
        """Keep what the watch says."""
        self._told.append(row)

    def _limits(self) -> Limits:
        cap = self._settings.memory_cap_bytes
        return Limits(self._total_bytes if cap is None else cap, None)
