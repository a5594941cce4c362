"""What advice is given from: the settings in effect, the steps taken under them, and what stands beside."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.analysis.advice.inspected import Inspected
from harness.analysis.effect import ObservedChange
from harness.analysis.timing.phases import LEFT_OUT, Timing
from harness.analysis.timing.verdict import Bound, verdict
from harness.memory_records import MemorySampleRow
from harness.records import DeviceFacts, DeviceKind, HostSampleRow, StepRow
from harness.settings import Settings
from harness.telemetry_records import DeviceDetailRow, DeviceProcessRow

# A tried change has brought no gain when so much more speed lies outside the interval of what was seen.
RULED_OUT = 1.05


class Tried(NamedTuple):
    """A change of settings made in this run, its values as in JSON, and what could be seen to change."""

    changed: Mapping[str, Any]
    step: int
    observed: ObservedChange | None
    is_undone: bool = False
    """The run itself took it back, because memory ran out."""
    before: Mapping[str, Any] = {}
    """The values that these settings had."""

    @property
    def has_failed(self) -> bool:
        """Whether it was taken back, or a gain worth the name can be ruled out: the interval of the observed
        change in samples a second lies below 1.05. An interval that reaches farther says nothing yet."""
        if self.is_undone:
            return True
        rate = None if self.observed is None else self.observed.samples_per_s
        return rate is not None and rate.high < RULED_OUT


class Clocks(NamedTuple):
    """The clock of a GPU's multiprocessors in MHz: its mean in these steps, the highest of the run."""

    mean_mhz: float
    highest_mhz: float


class Foreseen(NamedTuple):
    """A predicted peak, in bytes, for a batch size under the settings in effect."""

    batch_size: int
    peak_bytes: int


class Known(NamedTuple):
    """Everything a rule may look at. Rows are in order; what is not known is None or empty."""

    device: DeviceFacts
    settings: Settings
    """Those in effect."""
    steps: Sequence[StepRow]
    """The newest ones under these settings, flagged ones among them."""
    timing: Timing
    """Of these steps."""
    tried: Sequence[Tried] = ()
    refused: Sequence[Mapping[str, Any]] = ()
    """Changes that the run has rejected."""
    details: Sequence[DeviceDetailRow] = ()
    processes: Sequence[DeviceProcessRow] = ()
    clocks: Clocks | None = None
    memory: MemorySampleRow | None = None
    speedups: Mapping[tuple[str, Any], float] = {}
    """By setting and value: the device's peak arithmetic with it over that without, where it is known."""
    foreseen: Foreseen | None = None
    inspected: Inspected | None = None
    sampled_steps: frozenset[int] = frozenset()
    """Steps in which memory was sampled: reading the allocator's list of blocks keeps Python waiting."""
    hosts: Sequence[HostSampleRow] = ()
    """Samples of the host while these steps were under way."""
    workers_cpu_pct: Mapping[int, float | None] = {}
    """By the number of such a sample: what the loader's workers took, 100 a core."""
    torch_threads: int | None = None
    """Threads that torch computes with on the CPU."""

    @property
    def settled(self) -> list[StepRow]:
        """The steps that count: no warm-up, no transition."""
        return [row for row in self.steps if not row.flags & LEFT_OUT]

    @property
    def is_gpu(self) -> bool:
        """Whether it trains on a GPU, which works beside the CPU."""
        return self.device.kind is not DeviceKind.CPU

    @property
    def bound(self) -> Bound:
        """What bounds the run, as the Profiler page says it."""
        return verdict(self.timing, self.is_gpu).bound
