"""Live telemetry of the machine: every GPU that the driver lists, and the host, sampled from one thread.

Free of torch, so that the dashboard can sample without a run.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pynvml

from harness.device.host.details import Rates, host_disk_counters, network_counters
from harness.device.host.memory import read_host_memory
from harness.device.host.probe import CpuLoad, cpu_temperature_c
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import DeviceDetails, DeviceSample

# Samples in the history.
MOMENTS = 120


class GpuSample(NamedTuple):
    """One GPU at one moment."""

    sample: DeviceSample
    details: DeviceDetails
    # The reason that a field is unavailable, as a clause: field → reason.
    missing: Mapping[str, str]


class HostMachineSample(NamedTuple):
    """The host at one moment; None: unavailable. Rates are those of the whole host; RAM is what this process
    can use (`harness.device.host.memory`)."""

    cpu_pct: float | None
    # The load average of the last minute: threads that run or wait.
    load: float | None
    cores: int | None
    temperature_c: float | None
    ram_used_bytes: int
    ram_total_bytes: int
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None


class MachineSample(NamedTuple):
    """The machine at one moment. `cost_ns` is the CPU time of the sampling."""

    t_ns: int
    host: HostMachineSample
    # By UUID.
    gpus: Mapping[str, GpuSample]
    cost_ns: int


class MachineHistory(NamedTuple):
    """The machine's GPUs (UUID and name) and its recent samples, oldest first."""

    gpus: Sequence[tuple[str, str]]
    moments: Sequence[MachineSample]
    # Sentences about GPUs that do not respond.
    warnings: Sequence[str]
    # The reason that NVML is unavailable.
    nvml_problem: str | None


EMPTY_HISTORY = MachineHistory((), (), (), None)


class MachineSampler:
    """Samples the machine from one thread. Close it when done."""

    def __init__(
        self,
        library: Any = pynvml,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_clock_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`library` is the module pynvml, or its fake."""
        self._clock_ns = clock_ns
        self._cpu_clock_ns = cpu_clock_ns
        self._load = CpuLoad()
        self._rates = Rates(clock_ns)
        self._rates.take(_host_counters())
        self._moments: deque[MachineSample] = deque(maxlen=MOMENTS)
        self._warnings: list[str] = []
        self._gpus: list[tuple[str, str]] = []
        self._telemetry: NvmlTelemetry | None = None
        self._problem: str | None = None
        try:
            nvml = Nvml(library)
        except NvmlUnavailableError as error:
            self._problem = error.reason
            return
        self._gpus = nvml.devices()
        uuids = [uuid for uuid, _ in self._gpus]
        self._telemetry = NvmlTelemetry(nvml, uuids, self._warnings.append, clock_ns)

    def sample(self) -> MachineHistory:
        """Take a sample and return the history."""
        began_ns = self._cpu_clock_ns()
        gpus = self._sample_gpus()
        host = self._sample_host()
        cost_ns = self._cpu_clock_ns() - began_ns
        self._moments.append(MachineSample(self._clock_ns(), host, gpus, cost_ns))
        return MachineHistory(self._gpus, tuple(self._moments), tuple(self._warnings), self._problem)

    def close(self) -> None:
        """Release NVML. Idempotent."""
        if self._telemetry is not None:
            self._telemetry.close()

    def _sample_gpus(self) -> dict[str, GpuSample]:
        if self._telemetry is None:
            return {}
        samples = {sample.device: sample for sample in self._telemetry.sample()}
        details = {details.device: details for details in self._telemetry.details()}
        missing = self._telemetry.missing()
        return {
            uuid: GpuSample(samples[uuid], details[uuid], dict(missing[uuid]))
            for uuid in samples.keys() & details.keys()
        }

    def _sample_host(self) -> HostMachineSample:
        memory = read_host_memory()
        rates = self._rates.take(_host_counters())
        return HostMachineSample(
            cpu_pct=self._load.take(),
            load=_load_average(),
            cores=os.cpu_count(),
            temperature_c=cpu_temperature_c(),
            ram_used_bytes=memory.used_bytes,
            ram_total_bytes=memory.total_bytes,
            disk_read_bytes_per_s=rates.get("read"),
            disk_written_bytes_per_s=rates.get("written"),
            network_received_bytes_per_s=rates.get("received"),
            network_sent_bytes_per_s=rates.get("sent"),
        )


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _host_counters() -> dict[str, float]:
    return host_disk_counters() | network_counters()
