"""What the training process needs from a device: memory, cache, cap, clock and telemetry, as protocols.

Implementations: `cuda` (AMD's GPUs too), `xpu`, `mps`, `cpu`; NVML's half is `nvml`. Their fakes live in
`fakes`. Everything here that runs once a step runs on the training thread: it must not synchronise the device
and must stay in microseconds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from harness.records import DeviceFacts, MemoryReading, Phase

if TYPE_CHECKING:  # The dashboard asks devices how they do, and never loads torch.
    import torch


class PhaseTimes(NamedTuple):
    """Device time of one step, in ns; `gap_ns` lies between the previous step's end and its start."""

    step_ns: int
    phases_ns: dict[Phase, int]
    gap_ns: int | None


class StepTicket(Protocol):
    """The device times of one step, which become known some steps later."""

    def ready(self) -> bool:
        """Whether the device has finished the step. Never waits."""
        ...

    def resolve(self) -> PhaseTimes | None:
        """The times, None when this device has no clock of its own or the step went untimed."""
        ...


class DeviceClock(Protocol):
    """Marks the phases of a step on the device's own clock, as a chain of n+1 events, without waiting."""

    def restart(self) -> None:
        """Forget the end of the step before: the next one has no gap."""
        ...

    def begin(self) -> None:
        """Mark the start of a step."""
        ...

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase; a phase may be lapped several times a step (gradient accumulation)."""
        ...

    def end(self) -> StepTicket | None:
        """Close the step. None: the ring of events was full and the step goes untimed."""
        ...


class AllocatorReading(NamedTuple):
    """How the memory that the allocator holds is cut up; each field None where it is not known.

    On the CPU the allocator is glibc's heap: `reserved_bytes` is what it hands out and what lies free in it,
    both beyond what they were at `begin_memory`, and `segments` are the large blocks it mapped one by one.
    XPU and MPS tell what is reserved and what of it is free, and no more.
    """

    reserved_bytes: int | None
    # In segments that are wholly free; empty_cache gives these back. On the CPU, XPU and MPS all that is
    # free.
    free_bytes: int | None
    # The free remainders in segments that are in use.
    split_free_bytes: int | None
    # The largest free block, wherever it lies.
    largest_free_bytes: int | None
    live_blocks: int | None
    segments: int | None
    # Free in the private pools of CUDA graphs, where nothing else can use it.
    private_free_bytes: int | None = None
    # Freed, and held until another stream has passed.
    waiting_bytes: int | None = None
    # How much more the kernel lets the process take under a cap on the CPU, where the cap counts all data of
    # the process. None without a cap, and on devices whose cap counts what is reserved.
    cap_left_bytes: int | None = None

    @classmethod
    def unknown(cls) -> "AllocatorReading":
        """Nothing is known."""
        return cls(None, None, None, None, None, None)


class RoomReading(NamedTuple):
    """The memory of the whole device, whoever uses it: what is free of it, and how much it has. On the CPU
    that is the RAM, or the control group's limit."""

    free_bytes: int | None
    total_bytes: int | None


class Device(Protocol):
    """A device being trained on, from inside the training process."""

    facts: DeviceFacts
    torch_device: "torch.device"
    # Whether the step's peak has to be looked for (`sample_peak`), because no allocator keeps it.
    samples_peak: bool

    def activate(self) -> None:
        """Make it the calling thread's current device, where torch has such a thing."""
        ...

    def clock(self) -> DeviceClock | None:
        """A new event clock, or None where work is synchronous (the CPU) or cannot be timed."""
        ...

    def begin_memory(self) -> None:
        """Note the level before the model is built: what follows is counted from here."""
        ...

    def note_peak(self) -> None:
        """Take part in finding the step's peak, at the end of a phase. Does nothing where the allocator
        tracks its own peak."""
        ...

    def sample_peak(self) -> None:
        """Take part in finding the step's peak, from the sampler's thread, some 50 times a second. Does
        nothing where the allocator tracks its own peak."""
        ...

    def read_memory(self) -> MemoryReading:
        """Read the allocator at the end of a step and start a new peak window."""
        ...

    def read_allocator(self) -> AllocatorReading:
        """Look at how the allocator's memory is cut up. From any thread; may take some milliseconds."""
        ...

    def read_room(self) -> RoomReading:
        """Ask how much of the device is free. From any thread; may take a millisecond."""
        ...

    def rss_bytes(self) -> int | None:
        """The process' resident set, as of some milliseconds ago."""
        ...

    def empty_cache(self) -> None:
        """Give cached memory back to the system."""
        ...

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit what may be allocated from here on (None: lift the limit). Raises SettingError when the cap
        lies below what is in use, with the smallest cap that would work."""
        ...

    def lift_cap_for_recovery(self) -> None:
        """After an out-of-memory error: make room for the handler itself. Harmless when there is no cap."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle. Only before the first and after the last step."""
        ...


class DeviceSample(NamedTuple):
    """One reading of a device's telemetry; each field is None where the device does not tell."""

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
    """A process on a device, by the number and with the memory that the driver tells."""

    pid: int
    memory_bytes: int | None


class DeviceDetails(NamedTuple):
    """What else a device tells; each field as in `harness.telemetry_records.DeviceDetailRow`, and None where
    the device does not tell. `processes` lists who uses it."""

    device: str
    energy_j: float | None
    pcie_sent_bytes: int | None
    pcie_received_bytes: int | None
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
    """Something that can be asked how it does, about once a second, from the sampler's thread."""

    def sample(self) -> Sequence[DeviceSample]:
        """One sample per device that answered. A metric that fails drops out by itself."""
        ...

    def details(self) -> Sequence[DeviceDetails]:
        """What else the devices tell, rates being those since the call before; nothing where a device has no
        more to tell."""
        ...

    def close(self) -> None:
        """Release the library behind it. Idempotent."""
        ...
