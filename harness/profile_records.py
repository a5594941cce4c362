"""The rows of a profile: a few steps of a live run under PyTorch's profiler.

As in `harness.records`: a `Row` binds to its table as it is, `None` means "not measured". Times are
nanoseconds, those of all steps of the profile together.
"""

from enum import StrEnum
from typing import NamedTuple


class ProfileReason(StrEnum):
    """Why a profile was taken."""

    ASKED = "asked"
    # The setting `profile_at` names the step.
    SCHEDULE = "schedule"


class Kind(StrEnum):
    """What a person thinks of when they ask where the time goes."""

    MATMUL = "matrix multiply"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    RECURRENT = "recurrent"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    LOSS = "loss"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    LAYOUT = "layout"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"
    # Nothing ran: wall time without any of the above. No operator is of this kind.
    IDLE = "idle"


class ProfileRow(NamedTuple):
    """One profile, or why there is none where one was due."""

    # Counts from 1.
    profile_id: int
    t_ns: int
    # The first step recorded; the profiler's own start falls into the step before.
    first_step: int
    # Steps recorded; 0 when the profile failed, which `message` then says.
    steps: int
    settings_version: int
    # A `ProfileReason`.
    reason: str
    # 1: kernels were recorded on the device's clock; 0: operators on the CPU alone.
    on_device: int
    # How long the recorded steps took.
    wall_ns: int | None
    # Of that: a kernel or copy ran on the device (overlaps counted once); on the CPU: an operator ran on any
    # thread of the training process.
    busy_ns: int | None
    # How long training waited after the last step while what was recorded was read and kept.
    took_ns: int | None
    # A recorded step's duration over that of an ordinary one before.
    slowdown: float | None
    # 1: what operators allocated was recorded.
    with_memory: int
    # 1: the lines that called operators were recorded.
    with_stacks: int
    # The trace in the folder captures: Chrome's trace format, gzipped.
    file: str | None
    file_bytes: int | None
    # One sentence: what took most; or "The profile is unavailable, because …".
    message: str
    # What is not in it and why, as sentences; empty when nothing is.
    left_out: str


class ProfileOpRow(NamedTuple):
    """One operator (on the CPU's clock, with the kernels it launched) or one kernel or copy of the device."""

    profile_id: int
    # 1 has the most time of its own.
    rank: int
    name: str
    # A `Kind`: matrix multiply, convolution, …
    kind: str
    # 1: a kernel, copy or fill on the device.
    is_kernel: int
    calls: int
    # CPU time without the operators it called; 0 for kernels.
    self_cpu_ns: int
    total_cpu_ns: int
    # Device time of the kernels it launched itself, a kernel's own time; None without a device's clock.
    self_device_ns: int | None
    total_device_ns: int | None
    # Allocated minus freed by it, on the device trained on; None unless asked for.
    self_bytes: int | None


class ProfileModuleRow(NamedTuple):
    """One module in one phase of the steps, with its children in `total_…` and without in `self_…`."""

    profile_id: int
    # Its path, empty for the model itself; every module around it has a row too. What belongs to no module
    # has a path in angle brackets: "<loss>", "<optimizer>", "<data wait>", "<copy>", "<other>".
    module: str
    # A `harness.records.Phase`, or "other".
    phase: str
    # Its class; empty for what is no module.
    class_name: str
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int | None
    total_device_ns: int | None


class ProfileStackRow(NamedTuple):
    """What ran below one stack of Python lines; only where stacks were asked for."""

    profile_id: int
    # 1 has the most time of its own.
    rank: int
    # One frame a line, "file:line function", outermost first; the last line is the operator.
    stack: str
    calls: int
    self_cpu_ns: int
    self_device_ns: int | None
