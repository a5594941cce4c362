"""The rows and closed sets that pass between layers: named tuples and string enums, free of torch.

A NamedTuple whose name ends in `Row` binds to SQL as it is: its fields are its table's columns, in order.
`None` means "not measured"; zero is a measured zero, except in the columns `ZERO_IF_UNKNOWN` of a step. Times
called `t_ns` count from the run's start on the monotonic clock; `unix_ns` is wall time.
"""

from enum import IntFlag, StrEnum
from typing import Any, NamedTuple

from harness.files.plain_json import json_object


class RunState(StrEnum):
    """The state of a run: its activity while it is live, its outcome once it is over."""

    LAUNCHING = "launching"
    RUNNING = "running"
    PAUSED = "paused"
    STALLED = "stalled"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """True when the run has ended, and its state is final."""
        return self in _OVER


_OVER = frozenset(
    {
        RunState.FINISHED,
        RunState.STOPPED,
        RunState.OUT_OF_MEMORY,
        RunState.FAILED,
        RunState.KILLED,
        RunState.LOST,
    }
)


class Phase(StrEnum):
    """The parts of a training step that are timed, in their order."""

    DATA_WAIT = "data_wait"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class StepFlag(IntFlag):
    """Properties of a step that exclude it from statistics."""

    NONE = 0
    # One of the first steps of the run: allocator growth, cuDNN search, lazy initialization.
    WARM_UP = 1
    # One of the first steps after a change of settings.
    TRANSITION = 2
    # Recorded under the profiler. In logs of earlier versions also the steps that a snapshot tracked.
    PROFILED = 4
    # The ring of device events was full: no device times.
    UNTIMED = 8
    # Every allocation was tracked, for a snapshot.
    TRACKED = 16


# Steps that are slower because something recorded them.
RECORDED_FLAGS = int(StepFlag.PROFILED | StepFlag.TRACKED)
# Steps that are not of the steady state.
EXCLUDED_FLAGS = int(StepFlag.WARM_UP | StepFlag.TRANSITION) | RECORDED_FLAGS


# A memory reading applies to steps that end within this time of it. Without a new one, later steps have the
# RSS alone.
MAX_SHARED_READING_NS = 100_000_000


class StepRow(NamedTuple):
    """One optimizer step, which may be made of several micro-batches (`grad_accumulation`).

    Phase times without prefix are on the CPU clock; for asynchronous devices that is *issue time*.
    Phase times with the prefix `device_` are between device events; None too for a step of a script within
    which work of no step was done, such as an evaluation. `step_ns` minus the phases is the residual. The
    memory columns hold the newest reading: steps of about 20 ms and longer have one each, shorter steps share
    one, and its peaks then cover the time since the previous reading. Where readings would take more than 1 %
    of the time, steps without a recent one have the RSS alone.
    Of a script's step, a phase that nothing measured, and an unknown number of samples, are 0.
    `all_reduce_wait_ns` is the end of `backward_ns`, and `broadcast_wait_ns` (of buffers) the begin of
    `forward_ns`, in which a rank of several waits for the others; measured with DDP on the CPU.
    """

    step: int
    t_ns: int
    step_ns: int
    data_wait_ns: int
    h2d_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    device_step_ns: int | None
    device_h2d_ns: int | None
    device_forward_ns: int | None
    device_backward_ns: int | None
    device_optimizer_ns: int | None
    device_gap_ns: int | None
    loss: float | None
    loss_state: int | None
    samples: int
    tokens: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    active_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    inactive_split_bytes: int | None
    alloc_retries: int | None
    ooms: int | None
    rss_bytes: int | None
    settings_version: int
    flags: int
    all_reduce_wait_ns: int | None
    broadcast_wait_ns: int | None


# The columns of a step in which 0 means that nothing measured it: in a script's step any of them may be so.
ZERO_IF_UNKNOWN = ("data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns", "samples")


class DeviceSampleRow(NamedTuple):
    """One telemetry sample of one device; `device` is its UUID, or "cpu"."""

    device: str
    seq: int
    t_ns: int
    step: int
    util_pct: float | None
    memory_util_pct: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    throttle_reasons: int | None


class HostSampleRow(NamedTuple):
    """One sample of the host and the training process. `process_cpu_pct` is 100 % per core."""

    seq: int
    t_ns: int
    step: int
    cpu_pct: float | None
    process_cpu_pct: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None
    workers_rss_bytes: int | None
    ram_used_bytes: int | None
    ram_total_bytes: int | None


class EventKind(StrEnum):
    """The kind of an event."""

    STATE = "state"
    SETTING = "setting"
    EMPTY_CACHE = "empty_cache"
    OOM = "oom"
    OOM_RECOVERED = "oom_recovered"
    LEAK = "leak"
    LEAK_CLEARED = "leak_cleared"
    SNAPSHOT = "snapshot"
    PROFILE = "profile"
    # The end of a measurement.
    MEASUREMENT = "measurement"
    # Lines that synchronize with the GPU, and tensors off the device (`harness.watch.inspect`).
    INSPECTION = "inspection"
    INJECTED = "injected"
    NON_FINITE_LOSS = "non_finite_loss"
    GAP = "gap"
    STALL = "stall"
    # Between two steps of a script.
    EVALUATION = "evaluation"
    # A sentence of the script itself.
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Severity(StrEnum):
    """The severity of an event."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventRow(NamedTuple):
    """An event at a step. `label` fits a chart marker, `message` is one plain sentence, `detail` a JSON
    object."""

    t_ns: int
    step: int
    kind: str
    severity: str
    label: str
    message: str
    detail: str
    command_id: str | None


class SettingsRow(NamedTuple):
    """One version of the settings, in effect from `step` on. `settings` and `changed` are JSON objects."""

    version: int
    step: int
    t_ns: int
    settings: str
    changed: str
    command_id: str | None

    @property
    def values(self) -> dict[str, Any]:
        """All values by name. Raises ValueError where a foreign log has none."""
        return json_object(self.settings)

    @property
    def changes(self) -> dict[str, Any]:
        """The changed values by name. Raises ValueError as `values`."""
        return json_object(self.changed)

    @property
    def is_change(self) -> bool:
        """Whether a value changed; values of a script's loader may only have become known."""
        return self.changed != "{}"


class RunRow(NamedTuple):
    """The identity of a run, written at its start. The run itself sets `state` and the fields after it at its
    end."""

    run_id: str
    name: str
    started_unix_ns: int
    harness_version: str
    # The requested settings, as JSON.
    settings: str
    # `DeviceFacts` of the training device, as JSON.
    device: str
    model_parameters: int | None
    # Versions of Python, torch, CUDA, driver, …, as JSON.
    versions: str
    host: str
    simulated: int
    state: str
    state_message: str
    ended_unix_ns: int | None


class ModelSizeRow(NamedTuple):
    """The field of the run's row that is known once the model is built."""

    model_parameters: int


class CommandKind(StrEnum):
    """The kinds of command that a live run accepts."""

    SET = "set"
    EMPTY_CACHE = "empty_cache"
    SNAPSHOT = "snapshot"
    PROFILE = "profile"
    # Measure the effect of a change of settings.
    MEASURE = "measure"
    # End the measurement under way with what it has.
    END_MEASUREMENT = "end_measurement"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


class CommandState(StrEnum):
    """The result of a command."""

    QUEUED = "queued"
    APPLIED = "applied"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ROLLED_BACK = "rolled_back"


class CommandRow(NamedTuple):
    """A command, in control.sqlite3. `payload` is a JSON object (for SET: setting → value)."""

    command_id: str
    created_unix_ns: int
    kind: str
    payload: str
    source: str

    @property
    def values(self) -> dict[str, Any]:
        """The payload as a dict; empty where it is no JSON object, which the run rejects."""
        try:
            return json_object(self.payload)
        except ValueError:
            return {}


class AckRow(NamedTuple):
    """The run's acknowledgment of a command, in its own log."""

    command_id: str
    state: str
    step: int
    t_ns: int
    message: str


class ExitRow(NamedTuple):
    """The exit of the process, recorded by its parent in control.sqlite3. Negative `returncode`: a signal."""

    pid: int
    observed_unix_ns: int
    returncode: int


class DeviceKind(StrEnum):
    """The kinds of device that torch can train on. AMD GPUs are of the kind CUDA: a ROCm build of torch
    exposes them under that name."""

    CUDA = "cuda"
    # Intel GPUs.
    XPU = "xpu"
    # Apple GPUs, through Metal Performance Shaders.
    MPS = "mps"
    CPU = "cpu"


class AmpMode(StrEnum):
    """Mixed precision: off, bfloat16 autocast, or float16 autocast with GradScaler."""

    OFF = "off"
    BF16 = "bf16"
    FP16 = "fp16"


class DeviceFacts(NamedTuple):
    """The fixed properties of a device. `ordinal` is torch's index, after CUDA_VISIBLE_DEVICES."""

    kind: DeviceKind
    ordinal: int | None
    uuid: str | None
    name: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    multiprocessors: int | None
    power_limit_w: float | None
    amp_modes: tuple[AmpMode, ...]
    can_pin: bool
    # True when empty_cache has an effect (on a GPU's cache; on the CPU it is glibc's malloc_trim).
    can_trim: bool
    # True when a memory cap can be enforced.
    can_cap: bool
    can_compile: bool

    @property
    def torch_name(self) -> str:
        """Torch's name of the device: "cpu", "cuda:1", "xpu:0", "mps:0"."""
        return "cpu" if self.kind is DeviceKind.CPU else f"{self.kind.value}:{self.ordinal}"


class MemoryReading(NamedTuple):
    """The memory of a device's allocator; the peaks are those since the previous reading."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    active_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    inactive_split_bytes: int | None
    alloc_retries: int | None
    ooms: int | None
