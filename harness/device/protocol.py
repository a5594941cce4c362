"""The protocols of a training device: memory, cache, cap, clock and telemetry.

Implementations: `cuda` (also for AMD GPUs), `xpu`, `mps`, `cpu`, and `nvml` for telemetry; fakes are in
`harness.device.testing`. Whatever runs once per step runs on the training thread: it must not synchronize
with the device and must take microseconds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from harness.records.memory import ProcessLimit
from harness.records.run import DeviceFacts, MemoryReading, Phase

if TYPE_CHECKING:  # The dashboard samples devices without loading torch.
    import torch


class PhaseTimes(NamedTuple):
    """Device time of one step, in ns; `gap_ns` is the time from the previous step's end to its start."""

    step_ns: int
    phases_ns: dict[Phase, int]
    gap_ns: int | None


class StepTicket(Protocol):
    """The device times of one step, available some steps later."""

    def ready(self) -> bool:
        """Return whether the device has finished the step. Never waits."""
        ...

    def resolve(self) -> PhaseTimes | None:
        """Return the times, None when the step is untimed."""
        ...


class DeviceClock(Protocol):
    """Marks the phases of a step on the device's clock, as a chain of n+1 events, without waiting."""

    def restart(self) -> None:
        """Forget the end of the step before: the next one has no gap."""
        ...

    def leave_untimed(self) -> None:
        """Leave the step under way without times, because work of no step is among its marks; its ticket
        still says when the device has finished it. Before its first mark, leave it without a gap."""
        ...

    def begin(self) -> None:
        """Mark the start of a step."""
        ...

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase, several times per step with gradient accumulation."""
        ...

    def end(self, *, is_late: bool = False) -> StepTicket | None:
        """End the step. Returns None when the pool of events was empty: the step is untimed. `is_late`:
        the ticket is ready only when what was issued after the last lap is done as well."""
        ...


class AllocatorReading(NamedTuple):
    """The breakdown of the allocator's memory; None: unavailable.

    On the CPU the allocator is glibc's heap: `reserved_bytes` is in use plus free, both beyond those at
    `begin_memory`, and `segments` counts individually mapped blocks. XPU and MPS have only reserved and free.
    """

    reserved_bytes: int | None
    # In segments that are entirely free; empty_cache releases these. On the CPU, XPU and MPS: all free
    # memory.
    free_bytes: int | None
    # Free remainders in segments that are in use.
    split_free_bytes: int | None
    # The largest free block in any segment.
    largest_free_bytes: int | None
    live_blocks: int | None
    segments: int | None
    # Free in private pools (CUDA graphs, torch.cuda.MemPool), where nothing else can use it.
    private_free_bytes: int | None = None
    # Freed, and pending until another stream has finished with it.
    waiting_bytes: int | None = None
    # Bytes left under a cap on the CPU, which counts all data of the process. None without a cap, and on
    # devices whose cap counts reserved memory.
    cap_left_bytes: int | None = None
    # On the CPU: the limit of the process, other than a cap, that leaves the least memory. None without one.
    process_limit: ProcessLimit | None = None
    # On the CPU: of the newest steps, allocated memory at the end of the forward pass, minus that at the end
    # of the step. Peaks are sampled at random moments, these values always at the same ones.
    forward_end_bytes: tuple[int, ...] = ()

    @property
    def limit_left_bytes(self) -> int | None:
        """Bytes available on the CPU under the cap or the limit of the process, whichever is nearer; None
        without either."""
        limit_left = None if self.process_limit is None else self.process_limit.available_bytes
        both = (self.cap_left_bytes, limit_left)
        return min((left for left in both if left is not None), default=None)

    def data_outside_bytes(self, live_bytes: int | None) -> int | None:
        """Return how much the data of the process on the CPU, without `live_bytes` of its heap and without
        Stepscope's reserve, exceeds the nearer limit: a negative figure, for its changes. None without a
        limit."""
        left = self.limit_left_bytes
        if left is None or live_bytes is None:
            return None
        return -left - live_bytes - (0 if self.process_limit is None else self.process_limit.reserve_bytes)

    @property
    def most_within_process_limit_bytes(self) -> int | None:
        """Size that the reserved memory may reach on the CPU under the limit of the process; None without
        one."""
        if self.process_limit is None or self.reserved_bytes is None:
            return None
        return self.reserved_bytes + max(0, self.process_limit.left_bytes)

    @classmethod
    def unknown(cls) -> "AllocatorReading":
        """Return a reading without values."""
        return cls(None, None, None, None, None, None)


class MemoryInfo(NamedTuple):
    """Free and total memory of the device, all processes included. On the CPU that is the RAM, or the control
    group's limit."""

    free_bytes: int | None
    total_bytes: int | None


class TensorDevice(Protocol):
    """The part of a device that a workload needs."""

    facts: DeviceFacts
    torch_device: "torch.device"

    def empty_cache(self) -> None:
        """Release cached memory to the system."""
        ...


class Device(TensorDevice, Protocol):
    """A training device, inside the training process."""

    # True when the step's peak has to be sampled (`sample_peak`), because no allocator tracks it.
    samples_peak: bool
    # True where reserved memory is the process's RSS.
    reserves_rss: bool

    def activate(self) -> None:
        """Make it the calling thread's current device, if torch has one."""
        ...

    def activate_in_background(self) -> None:
        """Like `activate`, for a thread of the watch: its calls must not disturb the training thread, as in a
        capture of a graph."""
        ...

    def clock(self) -> DeviceClock | None:
        """Return a new event clock, or None where work is synchronous (the CPU) or cannot be timed."""
        ...

    def begin_memory(self) -> None:
        """Record the baseline before the model is built."""
        ...

    def note_peak(self) -> None:
        """Sample the peak at the end of a phase. Does nothing where the allocator tracks it."""
        ...

    def sample_peak(self) -> None:
        """Sample the peak from the sampler's thread, about 50 times per second. Does nothing where the
        allocator tracks it."""
        ...

    def begin_peak(self) -> int | None:
        """Start a new peak window without a reading; return the peak of the one before, at least as far as it
        is known. None: unknown."""
        ...

    def read_memory(self) -> MemoryReading:
        """Read the allocator at the end of a step and start a new peak window."""
        ...

    def read_allocator(self) -> AllocatorReading:
        """Return the breakdown of the allocator's memory. From any thread; may take some milliseconds."""
        ...

    def read_memory_info(self) -> MemoryInfo:
        """Return the device's free memory. From any thread; may take a millisecond."""
        ...

    def rss_bytes(self) -> int | None:
        """Return the process's RSS, at most some milliseconds old."""
        ...

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit allocations from now on (None: lift the limit). Raises SettingError, with the smallest cap
        that works, when the cap is below the memory in use."""
        ...

    def lift_cap_for_recovery(self) -> None:
        """Lift the cap after an out-of-memory error, so that the handler can allocate. Harmless without a
        cap."""
        ...

    def limit_bytes(self) -> int | None:
        """Return the allocator's limit, whoever has set it; None without one, and where
        `AllocatorReading.process_limit` has it. From any thread."""
        ...

    def sibling(self, index: int) -> "Device | None":
        """Return the device of the same kind with torch's number `index`, to read its memory: its peaks are
        never reset. None where there is only one."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle. Only before the first and after the last step."""
        ...


class DeviceSample(NamedTuple):
    """One sample of a device's telemetry; None: unavailable."""

    device: str
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


class DeviceProcess(NamedTuple):
    """A process on a device: the driver's pid, and its memory."""

    pid: int
    memory_bytes: int | None


class DeviceDetails(NamedTuple):
    """Detailed telemetry of a device, with the fields of `harness.records.telemetry.DeviceDetailRow`; None:
    unavailable. `processes` lists the processes that use the device."""

    device: str
    energy_j: float | None
    pcie_sent_bytes_per_s: float | None
    pcie_received_bytes_per_s: float | None
    pcie_method: str | None
    held_power_ns: int | None
    held_thermal_ns: int | None
    held_hw_thermal_ns: int | None
    held_power_brake_ns: int | None
    held_sync_boost_ns: int | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    processes: tuple[DeviceProcess, ...] | None
    sm_active_pct: float | None
    sm_occupancy_pct: float | None
    tensor_active_pct: float | None
    dram_active_pct: float | None


class Telemetry(Protocol):
    """A source of telemetry, sampled about once per second from the sampler's thread."""

    def sample(self) -> Sequence[DeviceSample]:
        """Return one sample per device that responds. A metric that fails is None."""
        ...

    def details(self) -> Sequence[DeviceDetails]:
        """Return the devices' details, with rates since the previous call; nothing if unavailable."""
        ...

    def close(self) -> None:
        """Release its library. Idempotent."""
        ...
