"""Rows about memory: samples, snapshots, leak verdicts and out-of-memory reports.

As in `harness.records.run`: a `Row` binds to its table, `None` means "not measured", sizes are bytes.
"""

from enum import StrEnum
from typing import NamedTuple


class MemoryCategory(StrEnum):
    """The uses of memory."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    # Saved by the forward pass for the backward pass.
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARIES = "temporaries"
    # Workspaces of kernels (cuBLAS, oneDNN, recurrent layers); in predictions, an estimate.
    LIBRARIES = "library workspaces"
    UNKNOWN = "unattributed"


class MemorySampleRow(NamedTuple):
    """One sample of the memory, read by the sampler's thread every few seconds.

    On a GPU the allocator is CUDA's caching allocator and the device is the card; on the CPU the allocator is
    glibc's heap and the device is the machine's RAM.
    """

    seq: int
    t_ns: int
    step: int
    allocated_bytes: int | None
    # Of the allocator. On the CPU: allocated plus the heap's free bytes.
    reserved_bytes: int | None
    # Of reserved: free, in segments that are entirely free; empty_cache releases these. On the CPU: free in
    # the heap.
    free_bytes: int | None
    # Of reserved: the free remainders of split blocks, which empty_cache cannot release.
    split_free_bytes: int | None
    largest_free_bytes: int | None
    live_blocks: int | None
    segments: int | None
    # Device memory of this process, context and libraries included (from NVML; on the CPU the RSS).
    process_bytes: int | None
    # Device memory of all processes.
    used_bytes: int | None
    total_bytes: int | None


class SnapshotReason(StrEnum):
    """The reason for a snapshot."""

    # Once after the warm-up: memory by module, without single allocations.
    START = "start"
    REQUESTED = "requested"
    LEAK = "leak"
    OUT_OF_MEMORY = "out of memory"


def reason_in_log(value: str) -> str:
    """Return the reason of a snapshot by its column in a log; older logs have another value for a request."""
    return SnapshotReason.REQUESTED if value == "asked" else value


class SnapshotRow(NamedTuple):
    """A snapshot of everything allocated. Written after its allocations and modules, so that a reader of the
    row can read those too. `method` describes how it was taken."""

    snapshot_id: int
    t_ns: int
    step: int
    reason: str
    method: str
    # Steps during which every allocation was recorded; 0: none, so there are no stacks.
    tracked_steps: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    # Of allocated: in the rows of `allocations`, before the list was cut.
    explained_bytes: int | None
    # Allocation sites; more than there are rows when the list was cut.
    sites: int
    # The time that training waited for it.
    took_ns: int
    # Duration of a tracked step divided by that of an ordinary one.
    slowdown: float | None
    # The raw snapshot for PyTorch's memory_viz, a name in the run's folder `captures`.
    file: str | None
    file_bytes: int | None
    # One sentence, which names what was cut.
    message: str


class AllocationRow(NamedTuple):
    """The live allocations of one site in a snapshot. `rank` counts from 1, the largest first.

    A snapshot that tracked steps shows their high-water mark, because between two steps there are no
    activations; one that tracked none shows the moment it was taken.

    `grown_bytes` and `grown_blocks` are retained memory: allocated by the site in the tracked steps, the last
    two excepted, and still live at the end. Growth with every step shows here. A tensor that the steps
    replace by larger ones has the difference of their sizes in `grown_bytes`, and 0 `grown_blocks`.
    """

    snapshot_id: int
    rank: int
    category: str
    module: str | None
    # file:line function of the innermost frame outside torch, or the name of a parameter.
    site: str
    # One frame per line, innermost first; empty when not recorded.
    stack: str
    held_bytes: int
    blocks: int
    grown_bytes: int | None
    grown_blocks: int | None


class ModuleMemoryRow(NamedTuple):
    """The memory of one module without its children; `module` is its path, empty for the model."""

    snapshot_id: int
    module: str
    kind: str
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int | None
    optimizer_bytes: int | None
    # Peak of what is saved for the backward pass in a tracked step; None: not tracked.
    activation_bytes: int | None


class LeakSeries(StrEnum):
    """The series that are checked for leaks."""

    ALLOCATED = "allocated"
    # Reserved minus allocated.
    FRAGMENTATION = "fragmentation"
    # The process's RSS minus allocated memory.
    HOST = "host"
    # The RSS of the loader's workers.
    WORKERS = "workers"


class LeakVerdict(StrEnum):
    """The verdict on a series at a moment. Every verdict may be withdrawn later."""

    TOO_EARLY = "too early"
    WARM_UP = "warm-up"
    STEADY = "steady"
    # It rises and recovers.
    SAWTOOTH = "sawtooth"
    # It rises, for too short a time to call it a leak.
    WATCH = "watch"
    LEAK = "leak"


# Two series whose growth began within this share of the analyzed time have one cause: the detector fits the
# whole history and its newer half, so the start of the growth is no more exact than that.
TOGETHER = 0.25


class LeakRow(NamedTuple):
    """A verdict on one series. The slope is the Theil-Sen estimate with its 95 % interval, in bytes per
    step."""

    t_ns: int
    step: int
    series: str
    verdict: str
    # The first analyzed step; of a growth after a flat stretch the step at which it began.
    since_step: int
    bytes_per_step: float | None
    low: float | None
    high: float | None
    risen_bytes: int | None
    # Steps until the memory limit at this slope; None without a limit or growth. Before the verdict "leak"
    # they are stated only if they are few.
    steps_to_oom: int | None
    # The smallest slope, in bytes per step, that would be detected by now.
    detection_limit: float | None
    message: str
    # The usual cause, where the pattern fits one.
    cause: str | None

    def has_one_cause_with(self, other: "LeakRow") -> bool:
        """Return whether both series began to grow at about the same step, so that they have one cause. The
        memory of the loader's workers is separate."""
        if LeakSeries.WORKERS in (self.series, other.series):
            return False
        length = max(self.step, other.step) - min(self.since_step, other.since_step)
        return abs(self.since_step - other.since_step) <= TOGETHER * length

    def withdraws(self, leak: "LeakRow") -> bool:
        """Return whether this later verdict on the series of `leak` states that its growth has ended. An
        analysis that restarted in between, as by a change of settings, must be able to detect such a leak."""
        if self.verdict == LeakVerdict.SAWTOOTH:
            return True
        if self.verdict != LeakVerdict.STEADY:
            return False
        if self.since_step <= leak.step:
            return True
        if self.detection_limit is None:
            return False
        return leak.bytes_per_step is None or self.detection_limit <= leak.bytes_per_step


class OomReportRow(NamedTuple):
    """An out-of-memory report. `report` is a JSON object, see `harness.analysis.oom.report`; `outcome`
    describes the action taken."""

    t_ns: int
    step: int
    outcome: str
    report: str


class MeasuredPeak(NamedTuple):
    """The highest peak of the steps with `samples` samples under one version of the settings, and the highest
    baseline before them."""

    samples: int
    steps: int
    peak_bytes: int
    baseline_bytes: int
    settings_version: int


class ProcessLimit(NamedTuple):
    """A limit of the system on the memory of one process, in bytes."""

    # The shell's command that sets it.
    option: str
    limit_bytes: int
    # What the limit counts, now and at the baseline, before which nothing belongs to the run.
    used_bytes: int
    before_bytes: int
    # Of what the limit counts: Stepscope's reserve for a report on an out-of-memory error.
    reserve_bytes: int = 0
    # Of what the limit counts: address space that malloc has set aside for other threads, which allocations
    # of any thread use once the system refuses more.
    set_aside_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """Bytes that remain under the limit; negative if it was set below the memory in use."""
        return self.limit_bytes - self.used_bytes

    @property
    def available_bytes(self) -> int:
        """Bytes that small allocations can still take: those left, and those set aside."""
        return self.left_bytes + self.set_aside_bytes
