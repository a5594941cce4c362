"""Measure what reading the allocator's lists takes, and how long it holds up the training thread."""

import statistics
import threading
import time
from collections.abc import Callable

import torch

from harness.device.find import open_device
from harness.device.protocol import Device
from tests.gpu.context import Context

BLOCKS = (100, 1_000, 10_000, 60_000)
_QUICK_BLOCKS = (100, 1_000)
_REPEATS = 5
_PAUSE_S = 0.01


def measure(context: Context) -> None:
    """Each number of live blocks."""
    device = open_device(context.device)
    device.begin_memory()
    for item in context.pending(map(str, _QUICK_BLOCKS if context.is_quick else BLOCKS)):
        tensors = [torch.empty(128, device=device.torch_device) for _ in range(int(item))]
        context.put(item, read_times(device) | {"blocks": len(tensors)})


def read_times(device: Device) -> dict[str, float]:
    """The median time of a reading, and the longest pause of a thread that only looks at the clock, without
    and with readings from another thread: torch makes the list while it holds the interpreter's lock."""
    taken_ns = []
    for _ in range(_REPEATS):
        began_ns = time.perf_counter_ns()
        device.read_allocator()
        taken_ns.append(time.perf_counter_ns() - began_ns)
    idle_ns = _longest_pause_ns(lambda: time.sleep(_PAUSE_S))
    reading_ns = _longest_pause_ns(device.read_allocator)
    return {
        "read_ms": statistics.median(taken_ns) / 1e6,
        "pause_without_ms": idle_ns / 1e6,
        "pause_with_ms": reading_ns / 1e6,
    }


def _longest_pause_ns(act: Callable[[], object]) -> int:
    """The longest time between two looks at the clock while another thread calls `act` a few times."""
    is_over = threading.Event()

    def repeat() -> None:
        for _ in range(_REPEATS):
            act()
            time.sleep(_PAUSE_S)
        is_over.set()

    thread = threading.Thread(target=repeat)
    longest_ns, before_ns = 0, time.perf_counter_ns()
    thread.start()
    while not is_over.is_set():
        now_ns = time.perf_counter_ns()
        longest_ns, before_ns = max(longest_ns, now_ns - before_ns), now_ns
    thread.join()
    return longest_ns
