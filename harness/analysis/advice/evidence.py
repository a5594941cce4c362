"""Evidence for advice: settings in effect, the steps under them, telemetry and memory of the run."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.analysis.advice.inspection import StepInspection
from harness.analysis.effect import ObservedChange
from harness.analysis.timing.phases import Timing
from harness.analysis.timing.verdict import Bound, verdict
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, MemorySampleRow
from harness.records.run import EXCLUDED_FLAGS, DeviceFacts, DeviceKind, HostSampleRow, StepRow
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow
from harness.settings import Settings
from harness.settings.spec import SPECS

# Limit on the upper end of the interval of samples per second, relative to before. Below it a change has
# failed.
LEAST_GAIN = 1.05


class PastChange(NamedTuple):
    """A past change of settings in this run, with values as in JSON, and its observed effect."""

    changed: Mapping[str, Any]
    step: int
    observed: ObservedChange | None
    # True when the run itself reverted the change after running out of memory.
    is_undone: bool = False
    # Values of the changed settings before the change.
    before: Mapping[str, Any] = {}
    # Upper end of the interval of the measured gain in samples per second; None if it was not measured.
    measured_high: float | None = None

    @property
    def has_failed(self) -> bool:
        """True when the change was reverted, or a real gain is ruled out: the interval of the observed or
        measured change in samples per second lies below 1.05. A wider interval is no evidence."""
        if self.is_undone or (self.measured_high is not None and self.measured_high < LEAST_GAIN):
            return True
        rate = None if self.observed is None else self.observed.samples_per_s
        return rate is not None and rate.high < LEAST_GAIN


class SmClock(NamedTuple):
    """SM clock of a GPU in MHz: mean over these steps, and the highest of the run."""

    mean_mhz: float
    highest_mhz: float


class PredictedPeak(NamedTuple):
    """Expected peak, in bytes, for a batch size under the settings in effect. `basis` says by what."""

    batch_size: int
    peak_bytes: int
    basis: str = "predicted"


class RunEvidence(NamedTuple):
    """Input of every rule. Rows are in order; unknown values are None or empty."""

    device: DeviceFacts
    # Settings in effect.
    settings: Settings
    # The newest steps under these settings, including flagged ones.
    steps: Sequence[StepRow]
    # Timing of these steps.
    timing: Timing
    past_changes: Sequence[PastChange] = ()
    # Changes rejected by the run.
    rejected: Sequence[Mapping[str, Any]] = ()
    details: Sequence[DeviceDetailRow] = ()
    processes: Sequence[DeviceProcessRow] = ()
    clocks: SmClock | None = None
    memory: MemorySampleRow | None = None
    # By setting and value: ratio of the device's peak FLOP/s with it to that without, where known.
    speedups: Mapping[tuple[str, Any], float] = {}
    predicted_peak: PredictedPeak | None = None
    inspection: StepInspection | None = None
    # Steps with a memory sample, slowed down by reading the allocator's block list under the GIL.
    sampled_steps: frozenset[int] = frozenset()
    # Samples of the host during these steps, and before them where those are short.
    host_samples: Sequence[HostSampleRow] = ()
    # By the number of a host sample: CPU time of the loader workers, 100 % per core.
    workers_cpu_pct: Mapping[int, float | None] = {}
    # Threads torch uses on the CPU.
    torch_threads: int | None = None
    # Memory that the run may allocate on the CPU under a limit of the process at its start (`ulimit`).
    process_limit_bytes: int | None = None
    # The settings that the run has: all of them, or some of a script's. Values of the others say nothing.
    names: frozenset[str] = frozenset(SPECS)
    # The newest leak verdict on each series.
    leaks: Sequence[LeakRow] = ()
    machine_cores: int | None = None
    # By the affinity of the run's process, or the quota of its container.
    usable_cores: int | None = None

    def value(self, name: str) -> Any:
        """The value of a setting in effect; None if the run does not have it."""
        return getattr(self.settings, name) if name in self.names else None

    @property
    def settled(self) -> list[StepRow]:
        """The steady-state steps, without warm-up and transition."""
        return [row for row in self.steps if not row.flags & EXCLUDED_FLAGS]

    @property
    def workers_leak(self) -> LeakRow | None:
        """The verdict that the loader's workers leak; None without."""
        return next((row for row in self._called if row.series == LeakSeries.WORKERS), None)

    @property
    def is_leaking(self) -> bool:
        """Whether any memory is said to leak."""
        return bool(self._called)

    @property
    def _called(self) -> list[LeakRow]:
        return [row for row in self.leaks if row.verdict == LeakVerdict.LEAK]

    @property
    def is_gpu(self) -> bool:
        """True for a GPU, which works asynchronously to the CPU."""
        return self.device.kind is not DeviceKind.CPU

    @property
    def bound(self) -> Bound:
        """The bound of the run, as in the Profiler page's verdict."""
        return verdict(self.timing, self.is_gpu).bound
