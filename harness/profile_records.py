"""The rows of a profile: a few steps of a live run under PyTorch's profiler.

As in `harness.records`: a `Row` binds to its table as it is, `None` means "not measured". Times are
nanoseconds, those of all steps of the profile together.
"""

from enum import StrEnum
from typing import NamedTuple


class ProfileReason(StrEnum):
    """Why a profile was taken."""

    ASKED = "asked"
    SCHEDULE = "schedule"
    """The setting `profile_at` names the step."""


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
    IDLE = "idle"
    """Nothing ran: wall time without any of the above. No operator is of this kind."""


class ProfileRow(NamedTuple):
    """One profile, or why there is none where one was due."""

    profile_id: int
    """Counts from 1."""
    t_ns: int
    first_step: int
    """The first step recorded; the profiler's own start falls into the step before."""
    steps: int
    """Steps recorded; 0 when the profile failed, which `message` then says."""
    settings_version: int
    reason: str
    """A `ProfileReason`."""
    on_device: int
    """1: kernels were recorded on the device's clock; 0: operators on the CPU alone."""
    wall_ns: int | None
    """How long the recorded steps took."""
    busy_ns: int | None
    """Of that: a kernel or copy ran on the device (overlaps counted once); on the CPU: an operator ran on any
    thread of the training process."""
    took_ns: int | None
    """How long training waited after the last step while what was recorded was read and kept."""
    slowdown: float | None
    """A recorded step's duration over that of an ordinary one before."""
    with_memory: int
    """1: what operators allocated was recorded."""
    with_stacks: int
    """1: the lines that called operators were recorded."""
    file: str | None
    """The trace in the folder captures: Chrome's trace format, gzipped."""
    file_bytes: int | None
    message: str
    """One sentence: what took most; or "The profile is unavailable, because …"."""
    left_out: str
    """What is not in it and why, as sentences; empty when nothing is."""


class ProfileOpRow(NamedTuple):
    """One operator (on the CPU's clock, with the kernels it launched) or one kernel or copy of the device."""

    profile_id: int
    rank: int
    """1 has the most time of its own."""
    name: str
    kind: str
    """A `Kind`: matrix multiply, convolution, …"""
    is_kernel: int
    """1: a kernel, copy or fill on the device."""
    calls: int
    self_cpu_ns: int
    """CPU time without the operators it called; 0 for kernels."""
    total_cpu_ns: int
    self_device_ns: int | None
    """Device time of the kernels it launched itself, a kernel's own time; None without a device's clock."""
    total_device_ns: int | None
    self_bytes: int | None
    """Allocated minus freed by it, on the device trained on; None unless asked for."""


class ProfileModuleRow(NamedTuple):
    """One module in one phase of the steps, with its children in `total_…` and without in `self_…`."""

    profile_id: int
    module: str
    """Its path, empty for the model itself; every module around it has a row too. What belongs to no module
    has a path in angle brackets: "<loss>", "<optimizer>", "<data wait>", "<copy>", "<other>"."""
    phase: str
    """A `harness.records.Phase`, or "other"."""
    class_name: str
    """Its class; empty for what is no module."""
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int | None
    total_device_ns: int | None


class ProfileStackRow(NamedTuple):
    """What ran below one stack of Python lines; only where stacks were asked for."""

    profile_id: int
    rank: int
    """1 has the most time of its own."""
    stack: str
    """One frame a line, "file:line function", outermost first; the last line is the operator."""
    calls: int
    self_cpu_ns: int
    self_device_ns: int | None
