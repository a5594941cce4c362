"""Evidence for tests of advice: a healthy run, and for each rule a run to which it applies."""

from collections.abc import Sequence
from typing import Any

from harness.analysis.advice import RunEvidence
from harness.analysis.advice.evidence import SmClock
from harness.analysis.advice.inspection import MisplacedTensor, StepInspection
from harness.analysis.timing.phases import analyze
from harness.demo.machine import FACTS
from harness.records.run import DeviceFacts, DeviceKind, HostSampleRow, StepRow
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow
from harness.settings import Settings
from tests.timing_factories import some_device_steps, some_steps

GIB = 2**30
MIB = 2**20
IMAGES = {"model": "resnet", "data": "shapes"}
_HEALTHY: dict[str, Any] = {
    "model": "transformer",
    "data": "stdlib-text",
    "batch_size": 32,
    "amp": "bf16",
    "channels_last": False,
    "pin_memory": True,
    "non_blocking": True,
}


def settings(**values: Any) -> Settings:
    return Settings(**(_HEALTHY | values))


def healthy_steps(count: int = 200) -> list[StepRow]:
    """Steps of a GPU that is busy all the time."""
    return some_device_steps(
        count,
        gap=0.01,
        parts=(0.1, 3.0, 6.0, 0.5),
        wait=0.1,
        forward=3.0,
        backward=5.5,
        optimizer=0.5,
        rest=0.51,
    )


def run_evidence(
    steps: Sequence[StepRow] | None = None, device: DeviceFacts = FACTS, values: Any = None, **more: Any
) -> RunEvidence:
    """Evidence of a healthy run, except for the arguments; `values` are settings."""
    rows = healthy_steps() if steps is None else steps
    return RunEvidence(device, settings(**(values or {})), rows, analyze(rows), **more)


CPU = DeviceFacts(**FACTS._asdict() | {"kind": DeviceKind.CPU, "uuid": None, "multiprocessors": 8})


def host_samples(cpu_pct: float, process_cpu_pct: float, count: int = 30) -> list[HostSampleRow]:
    """Host samples, one per second: all processors together in percent, this process in percent of a core."""
    return [
        HostSampleRow(second, second * 10**9, second, cpu_pct, process_cpu_pct, *(None,) * 5)
        for second in range(count)
    ]


def details(step_s: int = 30, **counters_per_s: Any) -> list[DeviceDetailRow]:
    """GPU details, one row per second; counters grow by the given amount per second."""
    empty = DeviceDetailRow(*[None] * len(DeviceDetailRow._fields))  # type: ignore[arg-type]  # filled below
    return [
        empty._replace(
            device="gpu",
            seq=second,
            t_ns=second * 10**9,
            step=second,
            **{name: rise * second for name, rise in counters_per_s.items()},
        )
        for second in range(step_s)
    ]


def _every(rows: Sequence[StepRow], period: int, **more_ns: int) -> list[StepRow]:
    """The rows, with every `period`-th one longer."""
    return [
        row._replace(**{name: getattr(row, name) + value for name, value in more_ns.items()})
        if row.step % period == 0
        else row
        for row in rows
    ]


def _with_values(rows: Sequence[StepRow], **values: Any) -> list[StepRow]:
    return [row._replace(**values) for row in rows]


def scenarios() -> dict[str, RunEvidence]:
    """By rule: evidence of a run to which only this rule applies."""
    launching = some_device_steps(200, gap=0.4, parts=(0.1, 3.0, 5.9, 1.0), wait=0.2, rest=0.3)
    starved = some_device_steps(
        200, gap=5.0, parts=(0.1, 3.0, 6.0, 0.5), wait=6.0, forward=2.0, backward=5.0, rest=0.6
    )
    copying = some_device_steps(
        200, gap=0.005, parts=(2.0, 3.0, 6.0, 0.5), wait=0.1, h2d=2.0, optimizer=0.5, rest=0.4
    )
    waiting = some_device_steps(
        200, gap=0.5, parts=(0.1, 3.0, 6.0, 0.4), wait=0.1, forward=1.0, backward=2.0, optimizer=0.3, rest=6.6
    )
    updating = some_device_steps(200, gap=0.005, parts=(0.1, 2.5, 5.4, 2.0), rest=0.1)
    retrying = [row._replace(alloc_retries=row.step // 20, inactive_split_bytes=0) for row in healthy_steps()]
    broken = _with_values(
        healthy_steps(),
        reserved_bytes=40 * GIB,
        peak_allocated_bytes=20 * GIB,
        inactive_split_bytes=15 * GIB,
    )
    uneven = _every(some_steps(200), 20, step_ns=50_000_000)
    other = DeviceProcessRow("gpu", 1, 4711, 0, "blender", 3 * GIB, 0)
    own = DeviceProcessRow("gpu", 1, 4712, 0, "python", 9 * GIB, 1)
    return {
        "input-bound": run_evidence(starved),
        "transfer-bound": run_evidence(copying, values={"pin_memory": False, "non_blocking": False}),
        "launch-bound": run_evidence(launching),
        "synchronizing": run_evidence(waiting, values={"device_metrics": False}),
        "misplaced-tensors": run_evidence(
            inspection=StepInspection(4, 2, (), (MisplacedTensor("buffer", "positions", "cpu", 3 * MIB),))
        ),
        "tensor-cores": run_evidence(values={"amp": "off"}),
        "channels-last": run_evidence(values=IMAGES),
        "multiples-of-eight": run_evidence(values=IMAGES | {"channels_last": True, "batch_size": 50}),
        "headroom": run_evidence(updating, values={"memory_cap_gib": 48.0}),
        "empty-cache": run_evidence(
            _every(healthy_steps(), 10, step_ns=5_000_000), values={"empty_cache_every": 10}
        ),
        "retries": run_evidence(retrying),
        "fragmentation": run_evidence(broken),
        "busy-host": run_evidence(
            uneven, CPU, {"amp": "off"}, host_samples=host_samples(98.0, 60.0), torch_threads=8
        ),
        "threads": run_evidence(
            uneven, CPU, {"amp": "off"}, host_samples=host_samples(99.0, 780.0), torch_threads=32
        ),
        "heat": run_evidence(details=details(held_thermal_ns=10**8), clocks=SmClock(1_600.0, 1_980.0)),
        "power-limit": run_evidence(details=details(held_power_ns=8 * 10**8)),
        "other-processes": run_evidence(processes=[own, other]),
        "unsteady": run_evidence(_every(healthy_steps(), 20, step_ns=50_000_000)),
    }
