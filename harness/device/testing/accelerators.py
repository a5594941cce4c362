"""Intel and Apple GPUs without hardware: fakes of the modules torch.xpu and torch.mps.

The real `XpuDevice` and `MpsDevice` run on them, with the allocator and the queue of
`harness.device.testing.device`. A test compares the functions' names and parameters with torch's. Tensors are
on the CPU.
"""

# ruff: noqa: ARG002 (the parameters are torch's)

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from harness.device.mps.device import MpsDevice
from harness.device.testing.device import FakeAllocator, FakeEvent, FakeQueue
from harness.device.xpu.device import XpuDevice
from harness.records.run import AmpMode, DeviceFacts, DeviceKind, MemoryReading

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
    """Behaves as `torch.xpu.Event(enable_timing=True)`: never waits, and raises if not yet reached."""

    def __init__(self, queue: FakeQueue, enable_timing: bool = False) -> None:
        super().__init__(queue)
        self._is_timed = enable_timing

    def record(self, stream: Any = None) -> None:
        """Record the event after all queued work."""
        super().record(stream)

    def elapsed_time(self, end_event: "FakeXpuEvent") -> float:  # type: ignore[override]  # as torch.xpu has it
        """Return the milliseconds between the events; raises RuntimeError also for untimed events."""
        if not (self._is_timed and end_event._is_timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return super().elapsed_time(end_event)


class FakeXpu:
    """The part of the module torch.xpu in use."""

    def __init__(self, allocator: FakeAllocator, queue: FakeQueue) -> None:
        self._allocator = allocator
        self._queue = queue

    def Event(self, enable_timing: bool = False) -> FakeXpuEvent:  # noqa: N802  # torch.xpu's name
        """Return a new event."""
        return FakeXpuEvent(self._queue, enable_timing)

    def current_stream(self, device: Any = None) -> Any:
        """Return the only stream."""
        return self._queue.stream

    def init(self) -> None:
        """Do nothing."""

    def set_device(self, device: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device: int | None = None) -> None:
        """Finish all queued work."""
        self._queue.finish()

    def empty_cache(self) -> None:
        """Empty the fake cache."""
        self._allocator.empty_cache()

    def reset_peak_memory_stats(self, device: int | None = None) -> None:
        """Start a new peak window."""
        self._allocator.read()

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, Any]:
        """Return the statistics of torch 2.6 to 2.13 for XPU."""
        fake = self._allocator
        return {
            "allocated_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
            "reserved_bytes": _stat(fake.reserved_bytes, fake.peak_reserved_bytes),
            "active_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
            "requested_bytes": _stat(fake.allocated_bytes, fake.peak_allocated_bytes),
        }

    def memory_reserved(self, device: int | None = None) -> int:
        """Return the reserved memory."""
        return self._allocator.reserved_bytes

    def mem_get_info(self, device: int | None = None) -> tuple[int, int]:
        """Return free and total memory."""
        total = self._allocator.total_bytes
        return total - self._allocator.reserved_bytes, total

    def set_per_process_memory_fraction(self, fraction: float, device: int | None = None) -> None:
        """Limit the reserved memory."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        self._allocator.limit_bytes = int(fraction * self._allocator.total_bytes)

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        """Return the limit of the reserved memory, as a share of all."""
        return self._allocator.limit_bytes / self._allocator.total_bytes

    def get_device_properties(self, device: int | None = None) -> SimpleNamespace:
        """Return the properties that `xpu_facts` reads."""
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
    """Behaves as `torch.mps.Event(enable_timing=True)`: reading a time waits for all queued work, and raises
    for two events with the same time."""

    def __init__(self, queue: FakeQueue, enable_timing: bool = False) -> None:
        super().__init__(queue)
        self._is_timed = enable_timing

    def record(self) -> None:  # type: ignore[override]  # torch.mps has one stream
        """Record the event after all queued work."""
        super().record()

    def elapsed_time(self, end_event: "FakeMpsEvent") -> float:  # type: ignore[override]  # as torch.mps has it
        """Finish all queued work and return the milliseconds between the events."""
        if not (self._is_timed and end_event._is_timed):
            raise RuntimeError("Events were not created with argument 'enable_timing=True'")
        self._queue.finish()
        self._queue.waits += 1
        elapsed_ms = super().elapsed_time(end_event)
        if elapsed_ms <= 0:
            raise RuntimeError("End event 2 was not recorded after start event 1")
        return elapsed_ms


class FakeMps:
    """The part of the module torch.mps in use."""

    def __init__(self, allocator: FakeAllocator, queue: FakeQueue) -> None:
        self._allocator = allocator
        self._queue = queue

    def Event(self, enable_timing: bool = False) -> FakeMpsEvent:  # noqa: N802  # torch.mps's name
        """Return a new event."""
        return FakeMpsEvent(self._queue, enable_timing)

    def synchronize(self) -> None:
        """Finish all queued work."""
        self._queue.finish()

    def empty_cache(self) -> None:
        """Empty the fake cache."""
        self._allocator.empty_cache()

    def current_allocated_memory(self) -> int:
        """Return the memory in tensors."""
        return self._allocator.allocated_bytes

    def driver_allocated_memory(self) -> int:
        """Return Metal's memory of the process."""
        return self._allocator.reserved_bytes

    def recommended_max_memory(self) -> int:
        """Return Metal's recommended maximum."""
        return self._allocator.total_bytes

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit Metal's memory, to at most twice the recommended maximum."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 2:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~2")
        self._allocator.limit_bytes = int(fraction * self._allocator.total_bytes)


class FakeXpuDevice(XpuDevice):
    """The real device over the fake module. `script` as for `harness.device.testing.device.FakeDevice`."""

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
    """The real device over the fake module. `script` as for `FakeDevice`; a peak within one call of it is not
    measured, as on the real device."""

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
