"""Device times of steps and phases against PyTorch's profiler, in the same steps."""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.profiling.events import Event, Role
from harness.profiling.nesting import sum_events
from harness.profiling.options import ProfileOptions
from harness.profiling.ranges import Ranges
from harness.profiling.window import WARM_UP_STEPS, ProfilerWindow, records_kernels
from harness.records.run import DeviceKind, Phase
from harness.settings.resolve import resolve
from harness.train.loop import take_step
from harness.train.workload import Workload
from harness.watch.readback import LossReader
from harness.watch.timing import StepTimer, phases_ns
from tests.gpu.context import Context

CASES: Mapping[str, Mapping[str, Any]] = {
    "transformer, workstation, batch 64": {
        "model": "transformer",
        "preset": "workstation",
        "batch_size": 64,
    },
    "cnn, workstation": {"model": "cnn", "preset": "workstation"},
    "transformer, laptop, batch 1": {"model": "transformer", "preset": "laptop", "batch_size": 1},
}
"""The last one's kernels are so short that launching them takes longer."""
_QUICK_CASES: Mapping[str, Mapping[str, Any]] = {"mlp, laptop": {"model": "mlp"}}
_SETTLE, _STEPS = 20, 5
_WORKING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def measure(context: Context) -> None:
    """Each case."""
    cases = _QUICK_CASES if context.is_quick else CASES
    for item in context.pending(cases):
        context.put(item, compare(open_device(context.device), cases[item]))


def compare(device: Device, values: Mapping[str, Any]) -> dict[str, Any]:
    """The clock's time over the profiler's, by phase and for whole steps: medians over the profiled steps.

    On a GPU the clock is CUDA's events, a step is held against the span of its kernels, and a phase against
    the time of its kernels: a ratio above one is time in which the phase had begun and no kernel ran. On the
    CPU the clock is the CPU's and a phase is held against its range in the profile.
    """
    settings = resolve({"device": device.facts.torch_name, "data": "synthetic", **values})
    source = open_source(settings)
    with device.torch_device:
        network = build_model(settings, source.shape)
    workload = Workload(settings, device, network, source)
    try:
        times, events = _profiled_steps(workload, device)
    finally:
        workload.close()
    if device.facts.kind is DeviceKind.CPU:
        return _against_ranges(times, events)
    return against_kernels(times, events)


def _profiled_steps(workload: Workload, device: Device) -> tuple[list[dict[str, int]], list[Event]]:
    """Times by phase (and "step") of the steps in a profile, and its events. Each step is waited for, so that
    its kernels lie within its range."""
    losses = LossReader.of(device.torch_device)
    timer = StepTimer(time.perf_counter_ns, device.clock(), losses=losses)
    for step in range(_SETTLE):
        take_step(workload, timer, step + 1)
    device.synchronize()
    ranges, taken = Ranges(workload, False), []
    with tempfile.TemporaryDirectory() as folder:
        window = ProfilerWindow(ProfileOptions(_STEPS), Path(folder) / "trace.json.gz", device.facts.kind)
        window.start()
        ranges.start()
        for step in range(WARM_UP_STEPS + _STEPS):
            timer.restart()
            taken.append(take_step(workload, timer, _SETTLE + step + 1)[:2])
            device.synchronize()
            window.end_step()
        ranges.stop()
        window.stop()
    assert window.result is not None, "the profiler recorded no steps"
    rows = []
    for times_ns, ticket in taken[WARM_UP_STEPS:]:
        resolved = None if ticket is None else ticket.resolve()
        if resolved is None:
            by_phase = zip((phase.value for phase in Phase), phases_ns(times_ns), strict=True)
            rows.append({"step": times_ns[-1] - times_ns[1], **dict(by_phase)})
        else:
            rows.append(
                {"step": resolved.step_ns, **{phase.value: ns for phase, ns in resolved.phases_ns.items()}}
            )
    return rows, list(window.result.events)


def against_kernels(times: list[dict[str, int]], events: list[Event]) -> dict[str, Any]:
    steps = [event for event in events if event.role is Role.STEP]
    kernels = [event for event in events if event.role is Role.KERNEL]
    whole = [row["step"] / _span_ns(step, kernels) for step, row in zip(steps, times, strict=True)]
    sums = sum_events(events, records_kernels(DeviceKind.CUDA), str)
    busy_ns: dict[str, int] = dict.fromkeys(_WORKING, 0)
    for (_, phase), own in sums.modules.items():
        if phase in busy_ns:
            busy_ns[phase] += own.self_device_ns
    return {
        "step_ms": statistics.median(row["step"] for row in times) / 1e6,
        "step": statistics.median(whole),
        **{phase: sum(row[phase] for row in times) / busy_ns[phase] for phase in _WORKING if busy_ns[phase]},
    }


def _against_ranges(times: list[dict[str, int]], events: list[Event]) -> dict[str, Any]:
    """Medians over the steps: another process may take the core between the clock and the range."""
    outcome: dict[str, Any] = {"step_ms": statistics.median(row["step"] for row in times) / 1e6}
    for phase in _WORKING:
        ranges = [event for event in events if event.role is Role.PHASE and event.name == phase.value]
        ratios = [
            row[phase] / (event.end_ns - event.start_ns)
            for row, event in zip(times, sorted(ranges, key=lambda event: event.start_ns), strict=True)
        ]
        outcome[phase] = statistics.median(ratios)
    return outcome


def _span_ns(step: Event, kernels: list[Event]) -> int:
    """From the first kernel's start to the last one's end, of those within a step."""
    inside = [event for event in kernels if step.start_ns <= event.start_ns < step.end_ns]
    return max(event.end_ns for event in inside) - min(event.start_ns for event in inside)
