"""Rows of an out-of-memory report: the facts at the failure and the conclusions.

The training process gathers `OomFacts` while the frames of the failed step are alive;
`harness.analysis.oom.explain.explain` turns them into an `OomReport`. Both are stored as strict JSON
(`to_json`, `report_from_json`) in the column `report` of the table oom_reports. Sizes are in bytes; None is
"not known".
"""

import json
from enum import StrEnum
from typing import NamedTuple

from harness.files.plain_json import json_object
from harness.records import json as row_json
from harness.records.memory import ProcessLimit
from harness.records.run import DeviceKind

# Names of fields of `OomFacts` in logs of earlier versions.
_EARLIER_NAMES = {"asked": "request", "held": "memory"}


class OomPhase(StrEnum):
    """The operation during which memory ran out."""

    SETUP = "before the training"
    BUILD = "building the model"
    DATA = "data loading"
    WORKER = "a loader worker"
    COPY = "copy to the device"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    TIDYING = "tidying up after the step"
    BETWEEN = "between two steps"


class OomVerdict(StrEnum):
    """The cause of an out-of-memory error, in the order in which the causes are tested."""

    SHARED_MEMORY = "shared memory"
    HOST = "host memory"
    REFUSED = "refused although free"
    OTHER_PROCESS = "another process"
    PRIVATE_POOLS = "private pools"
    OTHER_STREAM = "held for another stream"
    FRAGMENTATION = "fragmentation"
    LEAK = "leak"
    KEPT_GRAPHS = "kept autograd graphs"
    CAP = "memory cap"
    PROCESS_LIMIT = "limit of the process"
    UNLISTED = "unlisted memory"
    HUGE_REQUEST = "one huge request"
    FIRST_UPDATE = "first optimizer step"
    TOO_BIG = "simply too big"


class FailedRequest(NamedTuple):
    """The failed request and its origin.

    `error_bytes` is the size in the error. On CUDA that is the segment the allocator requested from the
    driver: 2 MiB for a tensor of up to 1 MiB, 20 MiB for one of 1 to 10 MiB, so the size of the tensor itself
    is between `least_bytes` and `most_bytes`.
    """

    error_bytes: int | None
    least_bytes: int | None
    most_bytes: int | None
    phase: OomPhase
    # Path in the model of the innermost module that was executing; empty: the model itself.
    module: str | None
    module_kind: str | None
    # "file:line function" of the innermost frame outside torch; the file is relative to its package's folder.
    site: str | None
    # Source text of that line.
    code: str | None
    # In the format of `site`, innermost first.
    stack: tuple[str, ...]
    # A caveat for the reader, such as that a backward pass has no Python frames.
    note: str | None
    # In the format of `site`: the innermost frame outside of installed packages; None where there is none.
    script_site: str | None = None


class MemoryAtFailure(NamedTuple):
    """Memory at the failure. On the CPU the allocator is glibc's heap and the device is the RAM."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    # Of reserved: in segments that are wholly free.
    free_bytes: int | None
    # Of reserved: the free remainders of split blocks.
    split_free_bytes: int | None
    largest_free_bytes: int | None
    # Of reserved: free in private pools (CUDA graphs, torch.cuda.MemPool).
    private_free_bytes: int | None
    # Of reserved: freed, but not reusable until another stream has passed.
    waiting_bytes: int | None
    device_free_bytes: int | None
    device_total_bytes: int | None
    # Of the device: memory of this process including its context and libraries.
    process_bytes: int | None
    # Of the device: memory of other processes.
    others_bytes: int | None
    # The memory cap in effect; None without one.
    cap_bytes: int | None
    # On the CPU: memory still available under the cap, which covers more than the heap.
    cap_left_bytes: int | None = None
    # On the CPU: the limit of the process, other than the cap, that left the least memory; None without one.
    process_limit: ProcessLimit | None = None
    # Of /dev/shm, after an error about it.
    shared_free_bytes: int | None = None
    shared_total_bytes: int | None = None
    # On the CPU: whether malloc maps large blocks individually, so that they leave no holes.
    maps_large_blocks: bool = False
    # On the CPU: the free memory of the heap, as read, in holes as large as the request. At the failure
    # there was none: of these holes the failed functions had all or a part, as in `[load(i) for i in …]`.
    large_hole_bytes: int | None = None

    @property
    def unused_bytes(self) -> int | None:
        """Reserved but unallocated bytes."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def is_capped(self) -> bool:
        """True if the cap, not the device or a limit of the process, is the limit."""
        if self.cap_bytes is None or self.is_limited:
            return False
        return self.device_total_bytes is None or self.cap_bytes < self.device_total_bytes

    @property
    def is_limited(self) -> bool:
        """True if a limit of the process is the limit: it left less memory than cap and device."""
        limit = self.process_limit
        if limit is None or (self.cap_bytes is not None and self.cap_left_bytes is None):
            return False
        others = (self.device_free_bytes, None if self.cap_bytes is None else self.cap_left_bytes)
        return all(limit.left_bytes < left_bytes for left_bytes in others if left_bytes is not None)

    @property
    def limit_bytes(self) -> int | None:
        """The cap, the limit of the process, or the device's memory."""
        if self.process_limit is not None and self.is_limited:
            return self.process_limit.limit_bytes
        return self.cap_bytes if self.is_capped else self.device_total_bytes

    @property
    def run_limit_bytes(self) -> int | None:
        """The part of the limit that the run itself can use: a limit of the process also covers the memory
        from before the run."""
        if self.process_limit is not None and self.is_limited:
            return max(0, self.process_limit.limit_bytes - self.process_limit.before_bytes)
        return self.limit_bytes

    @property
    def limit_left_bytes(self) -> int | None:
        """On the CPU: memory available under the limit, if that is the cap or a limit of the process."""
        if self.process_limit is not None and self.is_limited:
            return max(0, self.process_limit.left_bytes)
        return self.cap_left_bytes if self.is_capped else None

    @property
    def outside_bytes(self) -> int | None:
        """On the CPU: the run's memory outside of its heap, without Stepscope's reserve and what malloc has
        set aside, that a cap or a limit of the process covers, if that is the limit."""
        limit_bytes, left_bytes = self.run_limit_bytes, self.limit_left_bytes
        if limit_bytes is None or left_bytes is None or self.reserved_bytes is None:
            return None
        outside_bytes = limit_bytes - left_bytes - self.reserved_bytes
        if self.process_limit is not None and self.is_limited:
            outside_bytes -= self.process_limit.reserve_bytes + self.process_limit.set_aside_bytes
        return max(0, outside_bytes)

    @property
    def limit_name(self) -> str:
        """A name for the limit."""
        if self.process_limit is not None and self.is_limited:
            return f"limit of the process, {self.process_limit.option}"
        return "memory cap" if self.is_capped else "device"


class LiveCategory(NamedTuple):
    """Live allocations of one category, of one module or in total (`module` None)."""

    category: str
    module: str | None
    held_bytes: int


class LiveSite(NamedTuple):
    """The live tensors of one allocation site ("file:line function")."""

    site: str
    held_bytes: int
    blocks: int


class LiveVariable(NamedTuple):
    """A variable of the script's frames, such as "kept" or "net.history", in a frame in the format of `site`,
    and the memory that it holds in so many tensors, arrays and bytes: at least, unless all were counted.
    `saved_bytes` of it are saved for a backward pass by the autograd graphs of its tensors."""

    name: str
    site: str
    held_bytes: int
    blocks: int
    is_complete: bool = True
    saved_bytes: int = 0


class RecentStep(NamedTuple):
    """A step before the failure."""

    step: int
    step_ns: int
    allocated_bytes: int | None
    peak_bytes: int | None
    reserved_bytes: int | None


class BatchPeak(NamedTuple):
    """The highest peak of the steps with this batch size and otherwise the current settings."""

    batch_size: int
    peak_bytes: int
    steps: int


class RecentChange(NamedTuple):
    """The last change of settings before the failure. `steps_ago` is 0 if the failed step was its first."""

    step: int
    steps_ago: int
    message: str
    command_id: str | None


class LeakSign(NamedTuple):
    """The leak detected before memory ran out; `message` is a sentence on the growth."""

    series: str
    message: str
    bytes_per_step: float | None
    since_step: int | None = None
    # Up to the failed step.
    leaked_bytes: int | None = None
    # A sentence on the allocation site of the leak, from the snapshot that followed it.
    hunt: str | None = None
    # False if the verdict was only "watch": memory may run out before there is enough data for a leak.
    is_certain: bool = True
    # A sentence on the usual cause of such a leak, from its verdict.
    cause: str | None = None


class OomFacts(NamedTuple):
    """All facts at the failure, without interpretation."""

    step: int
    device: DeviceKind
    device_name: str
    error: str
    # The settings in effect; None for those that a script's run does not have.
    batch_size: int | None
    grad_accumulation: int | None
    amp: str | None
    checkpointing: bool | None
    request: FailedRequest
    memory: MemoryAtFailure
    # True before the first completed optimizer step.
    is_first_update: bool
    # The largest first.
    holders: tuple[LiveCategory, ...]
    # The largest first; empty if allocations were not tracked.
    sites: tuple[LiveSite, ...]
    steps: tuple[RecentStep, ...]
    peaks: tuple[BatchPeak, ...]
    # Baseline between two steps: weights, optimizer state and other retained memory.
    static_bytes: int | None
    change: RecentChange | None
    leak: LeakSign | None
    # The largest first; they are in `holders` too, as the rest outside of model and optimizer.
    variables: tuple[LiveVariable, ...] = ()
    # Calls of the model with gradients since the last backward pass, where those are far more than ever
    # before one; else 0.
    calls_without_backward: int = 0

    def is_part(self, holder: LiveCategory) -> bool:
        """Return whether `holder` is of one module and contained in a total that is listed too."""
        totals = {one.category for one in self.holders if one.module is None}
        return holder.module is not None and holder.category in totals

    @property
    def settings_text(self) -> str:
        """The settings in effect when the allocation failed, as far as the run has them."""
        values = [
            ("batch", None if self.batch_size is None else f"{self.batch_size:,}"),
            ("accumulation", None if self.grad_accumulation is None else f"{self.grad_accumulation:,}"),
            ("AMP", self.amp),
            ("checkpointing", None if self.checkpointing is None else "on" if self.checkpointing else "off"),
        ]
        return ", ".join(f"{name} {text}" for name, text in values if text is not None)


class PredictedChange(NamedTuple):
    """The predicted effect of a change of settings, such as "AMP bf16"."""

    label: str
    peak_bytes: int
    saved_bytes: int


class Counterfactual(NamedTuple):
    """The expected result with other settings. `basis` names the evidence."""

    text: str
    basis: str
    peak_bytes: int | None


class OomReport(NamedTuple):
    """The facts, and the conclusions from them."""

    facts: OomFacts
    verdict: OomVerdict
    # One sentence: the verdict with its numbers.
    why: str
    # Evidence for the verdict, and other findings, one sentence each.
    evidence: tuple[str, ...]
    counterfactuals: tuple[Counterfactual, ...]
    # The recovery, in a sentence.
    outcome: str

    @property
    def headline(self) -> str:
        """A heading with the step: "Out of memory in step 1,204"."""
        if self.facts.request.phase in (OomPhase.SETUP, OomPhase.BUILD) or not self.facts.step:
            return "Out of memory before the first step"
        return f"Out of memory in step {self.facts.step:,}"

    @property
    def sentence(self) -> str:
        """Headline, verdict and recovery in one line, for a badge or a list."""
        return f"{self.headline}: {self.why} {self.outcome}".rstrip()


def to_json(report: OomReport) -> str:
    """Serialize the report as one line of strict JSON."""
    return row_json.to_json(report)


def report_from_json(text: str) -> OomReport:
    """Parse the output of `to_json`, also of an earlier version. Raises ValueError if the text is not such a
    report."""
    value = json_object(text)
    facts = value.get("facts")
    if isinstance(facts, dict):
        value["facts"] = {_EARLIER_NAMES.get(name, name): fact for name, fact in facts.items()}
    return row_json.from_json(OomReport, json.dumps(value))
