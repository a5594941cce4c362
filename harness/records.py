"""The rows and closed sets that pass between layers: named tuples and string enums, free of torch.

A NamedTuple whose name ends in `Row` binds to SQL as it is: its fields are its table's columns, in order.
`None` means "not measured"; zero is a measured zero. Times called `t_ns` count from the run's start on the
monotonic clock; `unix_ns` is wall time.
"""

import math
from enum import IntEnum, IntFlag, StrEnum
from typing import Any, NamedTuple

from harness.plain_json import json_object


class RunState(StrEnum):
    """What a run is doing, or how it ended."""

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
        """Whether the run has ended and will not change any more."""
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
    """What is special about a step. Flagged steps are left out of statistics."""

    NONE = 0
    # One of the first steps of the run: allocator growth, cuDNN search, lazy initialisation.
    WARM_UP = 1
    # One of the first steps after a change of settings.
    TRANSITION = 2
    # Taken while the profiler was on.
    PROFILED = 4
    # The ring of device events was full: no device times.
    UNTIMED = 8


class FloatState(IntEnum):
    """What a float was, because SQLite silently stores NaN as NULL."""

    FINITE = 0
    NAN = 1
    INFINITE = 2
    MINUS_INFINITE = 3


def encode_float(value: float | None) -> tuple[float | None, int | None]:
    """Split `value` into what SQLite can keep and a `FloatState`; (None, None) is "not measured"."""
    if value is None:
        return None, None
    if math.isnan(value):
        return None, FloatState.NAN.value
    if math.isinf(value):
        return None, (FloatState.INFINITE if value > 0 else FloatState.MINUS_INFINITE).value
    return value, FloatState.FINITE.value


def decode_float(value: float | None, state: int | None) -> float | None:
    """Undo `encode_float`; a state that is none means "not measured"."""
    if state is None or state == FloatState.FINITE:
        return value
    return _NOT_FINITE.get(state)


_NOT_FINITE: dict[int, float] = {
    FloatState.NAN: math.nan,
    FloatState.INFINITE: math.inf,
    FloatState.MINUS_INFINITE: -math.inf,
}


# Short steps that end within this time of each other may share one reading of the memory.
SHARED_READING_NS = 50_000_000


class StepRow(NamedTuple):
    """One optimizer step, which may be made of several micro-batches (`grad_accumulation`).

    Phase times without prefix are on the CPU clock; for asynchronous devices that is *issue time*.
    Phase times with the prefix `device_` are between device events. What is left of `step_ns` after the
    phases is the residual. The memory columns are those of the newest reading: steps of some 20 ms and longer
    have one each, shorter ones share one, whose peaks are then those since the reading before.
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


class DeviceSampleRow(NamedTuple):
    """What one device said about itself at one moment; `device` is its UUID, or "cpu"."""

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
    """The host and the training process at one moment. `process_cpu_pct` counts 100 a core."""

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
    """What happened."""

    STATE = "state"
    SETTING = "setting"
    EMPTY_CACHE = "empty_cache"
    OOM = "oom"
    OOM_RECOVERED = "oom_recovered"
    LEAK = "leak"
    LEAK_CLEARED = "leak_cleared"
    SNAPSHOT = "snapshot"
    PROFILE = "profile"
    # What lines made the CPU wait for the GPU, and what lies elsewhere (`harness.train.inspection`).
    INSPECTION = "inspection"
    INJECTED = "injected"
    NON_FINITE_LOSS = "non_finite_loss"
    GAP = "gap"
    STALL = "stall"
    WARNING = "warning"
    ERROR = "error"


class Severity(StrEnum):
    """How much a person should care."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventRow(NamedTuple):
    """Something that happened at a step. `label` is short enough for a chart marker, `message` one plain
    sentence, `detail` a JSON object."""

    t_ns: int
    step: int
    kind: str
    severity: str
    label: str
    message: str
    detail: str
    command_id: str | None


class SettingsRow(NamedTuple):
    """One effective version of the settings, from `step` on. `settings` and `changed` are JSON objects."""

    version: int
    step: int
    t_ns: int
    settings: str
    changed: str
    command_id: str | None


class RunRow(NamedTuple):
    """Who a run is. Written once at its start; `state` and what follows are its own last word."""

    run_id: str
    name: str
    started_unix_ns: int
    harness_version: str
    # The settings asked for, as JSON.
    settings: str
    # `DeviceFacts` of the device trained on, as JSON.
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
    """Completes the run's row once the model is built."""

    model_parameters: int


class CommandKind(StrEnum):
    """What a person can ask of a live run."""

    SET = "set"
    EMPTY_CACHE = "empty_cache"
    SNAPSHOT = "snapshot"
    PROFILE = "profile"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


class CommandState(StrEnum):
    """What became of a command."""

    QUEUED = "queued"
    APPLIED = "applied"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ROLLED_BACK = "rolled_back"


class CommandRow(NamedTuple):
    """A request, in control.sqlite3. `payload` is a JSON object (for SET: setting → value)."""

    command_id: str
    created_unix_ns: int
    kind: str
    payload: str
    source: str

    @property
    def values(self) -> dict[str, Any]:
        """The payload's values; none where it is no JSON object, which the run rejects."""
        try:
            return json_object(self.payload)
        except ValueError:
            return {}


class AckRow(NamedTuple):
    """The harness's answer to a command, in its own log."""

    command_id: str
    state: str
    step: int
    t_ns: int
    message: str


class ExitRow(NamedTuple):
    """How the process ended, as its parent saw it; in control.sqlite3. Negative `returncode`: a signal."""

    pid: int
    observed_unix_ns: int
    returncode: int


class DeviceKind(StrEnum):
    """The kinds of device torch can train on here. AMD's GPUs are CUDA's kind: a torch built for ROCm reaches
    them under that name."""

    CUDA = "cuda"
    # Intel's GPUs.
    XPU = "xpu"
    # Apple's GPUs, through Metal Performance Shaders.
    MPS = "mps"
    CPU = "cpu"


class AmpMode(StrEnum):
    """Mixed precision: off, bfloat16 autocast, or float16 autocast with GradScaler."""

    OFF = "off"
    BF16 = "bf16"
    FP16 = "fp16"


class DeviceFacts(NamedTuple):
    """What is fixed about a device. `ordinal` is torch's index, counted after CUDA_VISIBLE_DEVICES."""

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
    # Whether empty_cache does something here (a GPU's cache; on the CPU glibc's malloc_trim).
    can_trim: bool
    # Whether a memory cap can be enforced here.
    can_cap: bool
    can_compile: bool

    @property
    def torch_name(self) -> str:
        """The name torch knows it by: "cpu", "cuda:1", "xpu:0", "mps:0"."""
        return "cpu" if self.kind is DeviceKind.CPU else f"{self.kind.value}:{self.ordinal}"


class MemoryReading(NamedTuple):
    """What a device's allocator holds; the peaks are those since the reading before."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    active_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    inactive_split_bytes: int | None
    alloc_retries: int | None
    ooms: int | None


class DataKind(StrEnum):
    """What a data source yields and a model takes."""

    IMAGE = "image"
    TEXT = "text"


class DataShape(NamedTuple):
    """The shape of one sample. Images are (channels, height, width) floats with a class label; text is
    `sequence_length` token ids below `vocabulary` with the next token at each position as its target."""

    kind: DataKind
    channels: int = 0
    height: int = 0
    width: int = 0
    classes: int = 0
    vocabulary: int = 0
    sequence_length: int = 0
