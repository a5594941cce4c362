"""The rows about memory: samples of the whole picture, snapshots, leak verdicts and out-of-memory reports.

As in `harness.records`: a `Row` binds to its table as it is, `None` means "not measured", sizes are bytes.
"""

from enum import StrEnum
from typing import NamedTuple


class MemoryCategory(StrEnum):
    """What memory is used for."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    # Saved by the forward pass for the backward pass.
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARIES = "temporaries"
    # What kernels take for themselves (cuBLAS, oneDNN, recurrent layers); in predictions, an estimate.
    LIBRARIES = "library workspaces"
    UNKNOWN = "not told apart"


class MemorySampleRow(NamedTuple):
    """Where memory is at one moment, read in one go from the sampler's thread every few seconds.

    On a GPU the allocator is CUDA's caching allocator and the device is the card; on the CPU the allocator is
    glibc's heap and the device is the machine's RAM.
    """

    seq: int
    t_ns: int
    step: int
    allocated_bytes: int | None
    # Held by the allocator. On the CPU: allocated and what lies free in the heap.
    reserved_bytes: int | None
    # Of reserved: free, in segments that are wholly free; empty_cache gives these back. On the CPU: free in
    # the heap.
    free_bytes: int | None
    # Of reserved: the free remainders of split blocks, which empty_cache cannot give back.
    split_free_bytes: int | None
    largest_free_bytes: int | None
    live_blocks: int | None
    segments: int | None
    # Of the device, held by this process, context and libraries included (NVML's figure; on the CPU RSS).
    process_bytes: int | None
    # Of the device, held by all processes.
    used_bytes: int | None
    total_bytes: int | None


class SnapshotReason(StrEnum):
    """Why a snapshot was taken."""

    # Once after the warm-up: what each module holds, without a look at single allocations.
    START = "start"
    ASKED = "asked"
    LEAK = "leak"
    OUT_OF_MEMORY = "out of memory"


class SnapshotRow(NamedTuple):
    """One look at everything that was allocated. Written after its allocations and modules, so that whoever
    sees it finds them. `method` says in words how it was taken."""

    snapshot_id: int
    t_ns: int
    step: int
    reason: str
    method: str
    # Steps during which every allocation was followed; 0: none, so nothing has a stack.
    tracked_steps: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    # Of allocated: in the rows of `allocations`, before anything was cut.
    explained_bytes: int | None
    # Allocation sites found; more than are kept when it was cut.
    sites: int
    # How long training waited for it.
    took_ns: int
    # A tracked step's duration over an ordinary one's.
    slowdown: float | None
    # The raw snapshot for PyTorch's memory_viz, a name in the run's folder `captures`.
    file: str | None
    file_bytes: int | None
    # One sentence, with what was cut.
    message: str


class AllocationRow(NamedTuple):
    """What one allocation site held at a snapshot. `rank` counts from 1, the largest first.

    A snapshot that followed steps shows their fullest moment, because between two steps activations are gone;
    one that followed none shows the moment it was taken.

    `grown_bytes` and `grown_blocks` are what the site allocated in the tracked steps but the last two and
    still held at the end: what grows with every step shows here.
    """

    snapshot_id: int
    rank: int
    category: str
    module: str | None
    # file:line function of the innermost frame outside torch, or what it is (a parameter's name).
    site: str
    # One frame a line, innermost first; empty when not recorded.
    stack: str
    held_bytes: int
    blocks: int
    grown_bytes: int | None
    grown_blocks: int | None


class ModuleMemoryRow(NamedTuple):
    """What one module holds itself, without its children; `module` is its path, empty for the model."""

    snapshot_id: int
    module: str
    kind: str
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int | None
    optimizer_bytes: int | None
    # Saved for the backward pass at its most, in a tracked step; None: not tracked.
    activation_bytes: int | None


class LeakSeries(StrEnum):
    """What is watched for a leak."""

    ALLOCATED = "allocated"
    # Reserved minus allocated.
    FRAGMENTATION = "fragmentation"
    # The process's RSS beside what is allocated.
    HOST = "host"
    # The RSS of the loader's workers.
    WORKERS = "workers"


class LeakVerdict(StrEnum):
    """What is thought of a series at a moment. Every verdict can be taken back."""

    TOO_EARLY = "too early"
    WARM_UP = "warm-up"
    STEADY = "steady"
    # It rises and recovers.
    SAWTOOTH = "sawtooth"
    # It rises; too short to call it a leak.
    WATCH = "watch"
    LEAK = "leak"


# Growth that began within this share of the time looked at has one cause: the detector looks at the whole
# history and at its newer half, and finds no beginning more exactly than that.
TOGETHER = 0.25


class LeakRow(NamedTuple):
    """A verdict on one series. The slope is Theil and Sen's with its 95 % interval, in bytes a step."""

    t_ns: int
    step: int
    series: str
    verdict: str
    # The first step that was looked at.
    since_step: int
    bytes_per_step: float | None
    low: float | None
    high: float | None
    risen_bytes: int | None
    # Until the limit at this slope; None without a limit or a leak.
    steps_to_oom: int | None
    # The smallest slope, in bytes a step, that would have been seen by now.
    detection_limit: float | None
    message: str
    # The usual cause where the pattern fits one.
    cause: str | None

    def has_one_cause_with(self, other: "LeakRow") -> bool:
        """Whether two series of the training process began to grow at about the same step, so that one
        mistake lets both grow; what its workers hold is their own."""
        if LeakSeries.WORKERS in (self.series, other.series):
            return False
        length = max(self.step, other.step) - min(self.since_step, other.since_step)
        return abs(self.since_step - other.since_step) <= TOGETHER * length


class OomReportRow(NamedTuple):
    """Why memory ran out. `report` is a JSON object, see `harness.analysis.oom.report`; `outcome` says in
    words what was done."""

    t_ns: int
    step: int
    outcome: str
    report: str
