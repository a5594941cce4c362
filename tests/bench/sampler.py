"""Measure what sampling the devices and the host costs once a second, of one core, beside the training
thread.

The host is this one and really asked; the GPU is the fake, so that its share is Stepscope's own work without
the driver's. Samples are a fifth of a second apart, so that caches are as cold as they are in a run.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.device.host.probe import CpuTelemetry, HostProbe
from harness.device.machine import MachineSampler
from harness.device.nvml.driver import Nvml
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.telemetry import HostDetailRow
from harness.watch.jobs.telemetry import TelemetryRecorder
from tests.bench.figures import Figure
from tests.train_factories import FakeJournal, a_context

MOST_PCT = 0.5
"""Of one core, at one sample a second."""
_PAUSE_S = 0.2
_WORKERS = 4


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """A run's sampler without and with workers, and the System page's own."""
    del folder
    looks = 30 if is_quick else 120
    gpus = [FakeGpu(), FakeGpu(uuid="GPU-two")]
    result = []
    for workers in (0, _WORKERS):
        with _processes(workers) as pids:
            costs_ms = _run_costs_ms(pids, looks)
        name = f"sampler, one GPU, {workers} workers: of one core"
        result.append(Figure(name, [cost_ms / 10 for cost_ms in costs_ms], "%", MOST_PCT))
    page = [cost_ms / 10 for cost_ms in _page_costs_ms(gpus, looks)]
    result.append(Figure("System page's sampler, two GPUs: of one core", page, "%", MOST_PCT))
    return result


def _run_costs_ms(pids: list[int], looks: int) -> list[float]:
    """Processor time of each sample; a sample a second of 1 ms is 0.1 % of a core."""
    gpu, journal = FakeGpu(), FakeJournal()
    nvml = NvmlTelemetry(Nvml(FakeNvml([gpu])), [gpu.uuid], print)
    recorder = TelemetryRecorder(
        a_context(journal=journal, clock_ns=time.perf_counter_ns),
        [CpuTelemetry(), nvml],
        HostProbe(lambda: pids),
    )
    for _ in range(looks):
        recorder.sample()
        time.sleep(_PAUSE_S)
    nvml.close()
    return [row.sampling_cpu_ns / 1e6 for row in journal.of(HostDetailRow)][3:]


def _page_costs_ms(gpus: list[FakeGpu], looks: int) -> list[float]:
    sampler = MachineSampler(FakeNvml(gpus))
    costs_ms = []
    for _ in range(looks):
        costs_ms.append(sampler.sample().moments[-1].cost_ns / 1e6)
        time.sleep(_PAUSE_S)
    sampler.close()
    return costs_ms[3:]


@contextmanager
def _processes(count: int) -> Iterator[list[int]]:
    """So many processes that wait."""
    result = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(count)
    ]
    try:
        yield [process.pid for process in result]
    finally:
        for process in result:
            process.communicate(b"\n")
