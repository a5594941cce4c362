"""Why memory ran out, as rows of strings and numbers: what was seen when it failed, and what follows from it.

`OomFacts` is gathered by the training process while the failed step's frames are alive; `OomReport` is what
`harness.analysis.oom_explain.explain` makes of it. Both travel as strict JSON (`to_json`, `report_from_json`)
in the column `report` of the table oom_reports. Sizes are bytes, None is "not known".
"""

from enum import StrEnum
from typing import NamedTuple

from harness.records import json as row_json
from harness.records.run import DeviceKind


class OomPhase(StrEnum):
    """What was under way when memory ran out."""

    BUILD = "building the model"
    DATA = "data loading"
    WORKER = "a loader worker"
    COPY = "copy to the device"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    TIDYING = "tidying up after the step"
    BETWEEN = "between two steps"


class OomVerdict(StrEnum):
    """What memory ran out for, in the order in which they are looked for."""

    OTHER_PROCESS = "another process"
    PRIVATE_POOLS = "private pools"
    OTHER_STREAM = "held for another stream"
    FRAGMENTATION = "fragmentation"
    LEAK = "leak"
    CAP = "memory cap"
    HUGE_REQUEST = "one huge request"
    FIRST_UPDATE = "first optimizer step"
    TOO_BIG = "simply too big"


class Asked(NamedTuple):
    """What was asked for, and by whom.

    `error_bytes` is what the error says. On CUDA that is the segment the allocator would have taken from the
    driver: 2 MiB stands for a tensor of up to 1 MiB and 20 MiB for one of 1 to 10 MiB, so the tensor itself
    lies between `least_bytes` and `most_bytes`.
    """

    error_bytes: int | None
    least_bytes: int | None
    most_bytes: int | None
    phase: OomPhase
    module: str | None
    """The innermost module at work, its path in the model; empty: the model itself."""
    module_kind: str | None
    site: str | None
    """file:line function of the innermost frame outside torch; the file relative to its package's folder."""
    code: str | None
    """That line."""
    stack: tuple[str, ...]
    """As `site`, innermost first."""
    note: str | None
    """What a person should know about these, such as that a backward pass has no Python frames."""


class Held(NamedTuple):
    """The memory at the moment it failed. On the CPU the allocator is glibc's heap and the device the RAM."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    free_bytes: int | None
    """Of reserved: in segments that are wholly free."""
    split_free_bytes: int | None
    """Of reserved: the free remainders of split blocks."""
    largest_free_bytes: int | None
    private_free_bytes: int | None
    """Of reserved: free in private pools (CUDA graphs)."""
    waiting_bytes: int | None
    """Of reserved: freed, and held until another stream has passed."""
    device_free_bytes: int | None
    device_total_bytes: int | None
    process_bytes: int | None
    """Of the device, held by this process with its context and libraries."""
    others_bytes: int | None
    """Of the device, held by other processes."""
    cap_bytes: int | None
    """The memory cap in effect; None when there was none."""
    cap_left_bytes: int | None = None
    """On the CPU: what the kernel would still have given under the cap, which counts more than the heap."""

    @property
    def unused_bytes(self) -> int | None:
        """Reserved by the allocator and in no tensor."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def is_capped(self) -> bool:
        """Whether the cap is the limit, and not the device."""
        if self.cap_bytes is None:
            return False
        return self.device_total_bytes is None or self.cap_bytes < self.device_total_bytes

    @property
    def limit_bytes(self) -> int | None:
        """The cap, or what the device has."""
        return self.cap_bytes if self.is_capped else self.device_total_bytes


class Holder(NamedTuple):
    """What holds memory: a category of one module, or all of it (`module` None)."""

    category: str
    module: str | None
    held_bytes: int


class LiveSite(NamedTuple):
    """The live tensors allocated at one line (`file:line function`)."""

    site: str
    held_bytes: int
    blocks: int


class RecentStep(NamedTuple):
    """One of the steps before it failed."""

    step: int
    step_ns: int
    allocated_bytes: int | None
    peak_bytes: int | None
    reserved_bytes: int | None


class BatchPeak(NamedTuple):
    """The highest peak of the steps with this batch size and otherwise the settings in effect."""

    batch_size: int
    peak_bytes: int
    steps: int


class RecentChange(NamedTuple):
    """The change of settings that came before the failure. `steps_ago` 0: the failed step was its first."""

    step: int
    steps_ago: int
    message: str
    command_id: str | None


class LeakSign(NamedTuple):
    """The leak that was seen before memory ran out; `message` says in a sentence what grew."""

    series: str
    message: str
    bytes_per_step: float | None
    since_step: int | None = None
    leaked_bytes: int | None = None
    """By the step that failed."""
    hunt: str | None = None
    """What the snapshot that followed the leak found, in a sentence: the line that keeps it."""
    is_certain: bool = True
    """Whether it had been called a leak, and not only watched: memory may run out within a minute."""


class OomFacts(NamedTuple):
    """Everything that is known, before anything is made of it."""

    step: int
    device: DeviceKind
    device_name: str
    error: str
    batch_size: int
    grad_accumulation: int
    amp: str
    checkpointing: bool
    asked: Asked
    held: Held
    is_first_update: bool
    """Whether no optimizer step had been taken before."""
    holders: tuple[Holder, ...]
    """The largest first."""
    sites: tuple[LiveSite, ...]
    """The largest first; empty when allocations were not followed."""
    steps: tuple[RecentStep, ...]
    peaks: tuple[BatchPeak, ...]
    static_bytes: int | None
    """What is held from one step to the next: weights, optimizer state and the like."""
    change: RecentChange | None
    leak: LeakSign | None


class PredictedChange(NamedTuple):
    """What a prediction says about a change of settings, such as "AMP bf16"."""

    label: str
    peak_bytes: int
    saved_bytes: int


class Counterfactual(NamedTuple):
    """What would have been otherwise. `basis` says what the claim rests on."""

    text: str
    basis: str
    peak_bytes: int | None


class OomReport(NamedTuple):
    """What is made of the facts."""

    facts: OomFacts
    verdict: OomVerdict
    why: str
    """One sentence for a person: the verdict with its numbers."""
    evidence: tuple[str, ...]
    """What speaks for it, and what else holds, a sentence each."""
    counterfactuals: tuple[Counterfactual, ...]
    outcome: str
    """What was done about it, in a sentence."""

    @property
    def headline(self) -> str:
        """That it happened, and where: "Out of memory in step 1,204"."""
        if self.facts.asked.phase is OomPhase.BUILD:
            return "Out of memory before the first step"
        return f"Out of memory in step {self.facts.step:,}"

    @property
    def sentence(self) -> str:
        """All of it in a line, for a badge or a list."""
        return f"{self.headline}: {self.why} {self.outcome}".rstrip()


def to_json(report: OomReport) -> str:
    """The report as one line of strict JSON."""
    return row_json.to_json(report)


def report_from_json(text: str) -> OomReport:
    """Undo `to_json`. Raises ValueError when the text is not such a report."""
    return row_json.from_json(OomReport, text)
