"""Rows of a profile: a few steps of a live run under PyTorch's profiler.

As in `harness.records.run`: a `Row` binds to its table as it is, `None` means "not measured". Times are in
nanoseconds and sums over all steps of the profile.
"""

from enum import StrEnum
from typing import NamedTuple


class ProfileReason(StrEnum):
    """The reason for a profile."""

    REQUESTED = "requested"
    # The setting `profile_at` names the step.
    SCHEDULE = "schedule"


class OperatorKind(StrEnum):
    """The kinds of operators and kernels, as in "30 % of the time is matrix multiply"."""

    MATMUL = "matrix multiply"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALIZATION = "normalization"
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
    # Wall time in which nothing ran. No operator is of this kind.
    IDLE = "idle"


class ProfileRow(NamedTuple):
    """One profile, or the reason that a requested one is missing."""

    # Counts from 1.
    profile_id: int
    t_ns: int
    # The first recorded step; the profiler starts in the step before.
    first_step: int
    # Recorded steps; 0 when the profile failed, for the reason in `message`.
    steps: int
    settings_version: int
    # A `ProfileReason`.
    reason: str
    # 1: kernels were recorded on the device's clock; 0: only operators on the CPU.
    on_device: int
    # Duration of the recorded steps.
    wall_ns: int | None
    # Of that: time in which a kernel or copy ran on the device (overlaps counted once); on the CPU: an
    # operator ran on any thread of the training process.
    busy_ns: int | None
    # The time that training waited after the last step, while the recording was read and stored.
    took_ns: int | None
    # Duration of a recorded step divided by that of an ordinary one before.
    slowdown: float | None
    # 1: memory allocated by operators was recorded.
    with_memory: int
    # 1: Python stacks of operators were recorded.
    with_stacks: int
    # The trace in the folder `captures`: Chrome's trace format, gzipped.
    file: str | None
    file_bytes: int | None
    # One sentence: the largest share; or "The profile is unavailable, because …".
    message: str
    # Limitations of the recording, as sentences; empty when there are none.
    left_out: str


class ProfileOpRow(NamedTuple):
    """One operator (on the CPU clock, with the kernels it launched) or one kernel or copy on the device."""

    profile_id: int
    # 1 has the most self time.
    rank: int
    name: str
    # A `Kind`: matrix multiply, convolution, …
    kind: str
    # 1: a kernel, copy or memset on the device.
    is_kernel: int
    calls: int
    # CPU time, child operators excluded; 0 for kernels.
    self_cpu_ns: int
    total_cpu_ns: int
    # Device time of the kernels it launched itself, or of the kernel; None without a device clock.
    self_device_ns: int | None
    total_device_ns: int | None
    # Allocated minus freed on the training device; None unless memory was recorded.
    self_bytes: int | None


class ProfileModuleRow(NamedTuple):
    """One module in one phase of the steps; `total_…` includes its children, `self_…` does not."""

    profile_id: int
    # Its path, empty for the model itself; its parents have rows too. Time outside of modules has a path in
    # angle brackets: "<loss>", "<optimizer>", "<data wait>", "<copy>", "<other>".
    module: str
    # A `harness.records.run.Phase`, or "other".
    phase: str
    # The module's class; empty outside of modules.
    class_name: str
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int | None
    total_device_ns: int | None


class ProfileStackRow(NamedTuple):
    """The operators below one Python stack; only when stacks were recorded."""

    profile_id: int
    # 1 has the most self time.
    rank: int
    # One frame per line, "file:line function", outermost first; the last line is the operator.
    stack: str
    calls: int
    self_cpu_ns: int
    self_device_ns: int | None
