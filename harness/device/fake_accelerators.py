"""Intel's and Apple's GPUs without hardware: stand-ins for the modules torch.xpu and torch.mps.

Behind them the real `XpuDevice` and `MpsDevice` run, over the allocator and the queue of `fakes`. Functions
have the names and parameters of torch's own, which a test compares. Tensors live on the CPU.
"""

# ruff: noqa: ARG002 (the parameters are torch's)

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from harness.device.fakes import FakeAllocator, FakeEvent, FakeQueue
from harness.device.mps import MpsDevice
from harness.device.xpu import XpuDevice
from harness.records import AmpMode, DeviceFacts, DeviceKind, MemoryReading

FAKE_XPU_FACTS = DeviceFacts(
    kind=DeviceKind.XPU,
    ordinal=0,
    uuid=None,
    name="Intel fake GPU",
    memory_bytes=8 << 30,
    capability=None,
    multiprocessors=160,
    power_limit_w=None,
    amp_modes=(AmpMode.OFF, AmpMode.BF16, AmpMode.FP16),
    can_pin=False,
    can_trim=True,
    can_cap=True,
    can_compile=False,
)
FAKE_MPS_FACTS = FAKE_XPU_FACTS._replace(
    kind=DeviceKind.MPS, name="Apple fake GPU", multiprocessors=10, amp_modes=(AmpMode.OFF, AmpMode.BF16)
)

Script = Callable[[FakeAllocator, int], None]


class FakeXpuEvent(FakeEvent):
    """Behaves as `torch.xpu.Event(enable_timing=True)`: never waits, and raises before it is reached."""

    def __init__(self, queue: FakeQueue, enable_timing: bool = False) -> None:
        super().__init__(queue)
        self._is_timed = enable_timing

    def record(self, stream: Any = None) -> None:
        """Mark the end of what is queued."""
        super().record(stream)

    def elapsed_time(self, end_event: "FakeXpuEvent") -> float:  # type: ignore[override]  # as torch.xpu has it
        """Milliseconds between the marks; raises RuntimeError for events that are not timed, too."""
        if not (self._is_timed and end_event._is_timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return super().elapsed_time(end_event)


class FakeXpu:
    """What is used of the module torch.xpu."""

    def __init__(self, allocator: FakeAllocator, queue: FakeQueue) -> None:
        self._allocator = allocator
        self._queue = queue

    def Event(self, enable_timing: bool = False) -> FakeXpuEvent:  # noqa: N802  # torch.xpu's name
        """A new event."""
        return FakeXpuEvent(self._queue, enable_timing)

    def current_stream(self, device: Any = None) -> Any:
        """There is one."""
        return self._queue.stream

    def init(self) -> None:
        """Nothing to initialise."""

    def set_device(self, device: int) -> None:
        """There is only one."""

    def synchronize(self, device: int | None = None) -> None:
        """Let the fake device finish."""
        self._queue.finish()

    def empty_cache(self) -> None:
        """Give the fake cache back."""
        self._allocator.empty_cache()

    def reset_peak_memory_stats(self, device: int | None = None) -> None:
        """A new window for the peaks."""
        self._allocator.read()

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, Any]:
        """The statistics that torch 2.6 to 2.13 have for XPU."""
        fake = self._allocator
        return {
            "allocated_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
            "reserved_bytes": _stat(fake.reserved_bytes, fake.peak_reserved_bytes),
            "active_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
            "requested_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
        }

    def memory_reserved(self, device: int | None = None) -> int:
        """What the cache holds."""
        return self._allocator.reserved_bytes

    def mem_get_info(self, device: int | None = None) -> tuple[int, int]:
        """Free and total."""
        total = self._allocator.total_bytes
        return total - self._allocator.reserved_bytes, total

    def set_per_process_memory_fraction(self, fraction: float, device: int | None = None) -> None:
        """Limit what the cache may hold."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        self._allocator.limit_bytes = int(fraction * self._allocator.total_bytes)

    def get_device_properties(self, device: int | None = None) -> SimpleNamespace:
        """What `xpu_facts` asks for."""
        return SimpleNamespace(
            name="fake GPU",
            total_memory=self._allocator.total_bytes,
            max_compute_units=160,
            has_fp16=True,
            has_fp64=True,
        )


def _stat(current: int, peak: int) -> dict[str, dict[str, int]]:
    return {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}}


class FakeMpsEvent(FakeEvent):
    """Behaves as `torch.mps.Event(enable_timing=True)`: reading a time waits for all that is queued, and two
    events reached in the same moment cannot be told apart."""

    def __init__(self, queue: FakeQueue, enable_timing: bool = False) -> None:
        super().__init__(queue)
        self._is_timed = enable_timing

    def record(self) -> None:  # type: ignore[override]  # torch.mps has one stream
        """Mark the end of what is queued."""
        super().record()

    def elapsed_time(self, end_event: "FakeMpsEvent") -> float:  # type: ignore[override]  # as torch.mps has it
        """Milliseconds between the marks, after everything queued is done."""
        if not (self._is_timed and end_event._is_timed):
            raise RuntimeError("Events were not created with argument 'enable_timing=True'")
        self._queue.finish()
        self._queue.waits += 1
        elapsed_ms = super().elapsed_time(end_event)
        if elapsed_ms <= 0:
            raise RuntimeError("End event 2 was not recorded after start event 1")
        return elapsed_ms


class FakeMps:
    """What is used of the module torch.mps."""

    def __init__(self, allocator: FakeAllocator, queue: FakeQueue) -> None:
        self._allocator = allocator
        self._queue = queue

    def Event(self, enable_timing: bool = False) -> FakeMpsEvent:  # noqa: N802  # torch.mps's name
        """A new event."""
        return FakeMpsEvent(self._queue, enable_timing)

    def synchronize(self) -> None:
        """Let the fake device finish."""
        self._queue.finish()

    def empty_cache(self) -> None:
        """Give the fake cache back."""
        self._allocator.empty_cache()

    def current_allocated_memory(self) -> int:
        """What tensors hold."""
        return self._allocator.allocated_bytes

    def driver_allocated_memory(self) -> int:
        """What Metal holds for the process."""
        return self._allocator.reserved_bytes

    def recommended_max_memory(self) -> int:
        """What Metal recommends as the most."""
        return self._allocator.total_bytes

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit what Metal may hold, up to twice what it recommends."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 2:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~2")
        self._allocator.limit_bytes = int(fraction * self._allocator.total_bytes)


class FakeXpuDevice(XpuDevice):
    """The real device over the fake module. `script` as for `harness.device.fakes.FakeDevice`."""

    def __init__(
        self,
        facts: DeviceFacts = FAKE_XPU_FACTS,
        queue: FakeQueue | None = None,
        script: Script | None = None,
    ) -> None:
        self.queue = queue if queue is not None else FakeQueue()
        self.allocator = FakeAllocator(facts.memory_bytes or 8 << 30)
        super().__init__(facts, FakeXpu(self.allocator, self.queue), torch.device("cpu"))
        self._script = script
        self._steps = 0

    def read_memory(self) -> MemoryReading:
        """Play the script's next step and read the allocator."""
        self._steps += 1
        if self._script is not None:
            self._script(self.allocator, self._steps)
        return super().read_memory()


class FakeMpsDevice(MpsDevice):
    """The real device over the fake module. `script` as for `harness.device.fakes.FakeDevice`; what it frees
    within one call is not seen, as on the real one."""

    def __init__(
        self,
        facts: DeviceFacts = FAKE_MPS_FACTS,
        queue: FakeQueue | None = None,
        script: Script | None = None,
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self.queue = queue if queue is not None else FakeQueue()
        self.allocator = FakeAllocator(facts.memory_bytes or 8 << 30)
        library, on_cpu = FakeMps(self.allocator, self.queue), torch.device("cpu")
        if clock_ns is None:
            super().__init__(facts, library, on_cpu)
        else:
            super().__init__(facts, library, on_cpu, clock_ns)
        self._script = script
        self._steps = 0

    def read_memory(self) -> MemoryReading:
        """Play the script's next step and read the allocator."""
        self._steps += 1
        if self._script is not None:
            self._script(self.allocator, self._steps)
        return super().read_memory()
