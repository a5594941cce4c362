"""The machine as it does now: every GPU the driver shows, and the host, looked at from one thread.

Free of torch, so that the dashboard can look for itself, runs or not.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil
import pynvml

from harness.device.host import CpuLoad, cpu_temperature_c
from harness.device.host_details import Rates, host_disk_counters, network_counters
from harness.device.nvml import Nvml, NvmlUnavailableError
from harness.device.nvml_telemetry import NvmlTelemetry
from harness.device.protocol import DeviceDetails, DeviceSample

# How many moments are remembered.
MOMENTS = 120


class GpuMoment(NamedTuple):
    """One GPU at one moment."""

    sample: DeviceSample
    details: DeviceDetails
    # Why a field is not told: field → reason, in a clause.
    missing: Mapping[str, str]


class HostMoment(NamedTuple):
    """The host at one moment; None where it is not told. Rates are those of the whole host."""

    cpu_pct: float | None
    temperature_c: float | None
    ram_used_bytes: int
    ram_total_bytes: int
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None


class Moment(NamedTuple):
    """The machine at one moment. `cost_ns` is the processor time that looking took."""

    t_ns: int
    host: HostMoment
    # By UUID.
    gpus: Mapping[str, GpuMoment]
    cost_ns: int


class Machine(NamedTuple):
    """What is known of the machine: its GPUs (UUID and name), and the last moments, oldest first."""

    gpus: Sequence[tuple[str, str]]
    moments: Sequence[Moment]
    # Sentences about GPUs that do not answer (any more).
    warnings: Sequence[str]
    # Why no GPU can be asked.
    nvml_problem: str | None


NOTHING_YET = Machine((), (), (), None)


class MachineSampler:
    """Looks at the machine from one thread. Close it when done."""

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
        self._moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._warnings: list[str] = []
        self._gpus: list[tuple[str, str]] = []
        self._telemetry: NvmlTelemetry | None = None
        self._problem: str | None = None
        try:
            nvml = Nvml(library)
        except NvmlUnavailableError as error:
            self._problem = error.found
            return
        self._gpus = nvml.devices()
        uuids = [uuid for uuid, _ in self._gpus]
        self._telemetry = NvmlTelemetry(nvml, uuids, self._warnings.append, clock_ns)

    def look(self) -> Machine:
        """Look once more; what is known then."""
        began_ns = self._cpu_clock_ns()
        gpus = self._ask_gpus()
        host = self._ask_host()
        cost_ns = self._cpu_clock_ns() - began_ns
        self._moments.append(Moment(self._clock_ns(), host, gpus, cost_ns))
        return Machine(self._gpus, tuple(self._moments), tuple(self._warnings), self._problem)

    def close(self) -> None:
        """Let go of NVML. Idempotent."""
        if self._telemetry is not None:
            self._telemetry.close()

    def _ask_gpus(self) -> dict[str, GpuMoment]:
        if self._telemetry is None:
            return {}
        samples = {sample.device: sample for sample in self._telemetry.sample()}
        further = {details.device: details for details in self._telemetry.details()}
        missing = self._telemetry.missing()
        return {
            uuid: GpuMoment(samples[uuid], further[uuid], dict(missing[uuid]))
            for uuid in samples.keys() & further.keys()
        }

    def _ask_host(self) -> HostMoment:
        ram = psutil.virtual_memory()
        rates = self._rates.take(_host_counters())
        return HostMoment(
            cpu_pct=self._load.take(),
            temperature_c=cpu_temperature_c(),
            ram_used_bytes=int(ram.total - ram.available),
            ram_total_bytes=int(ram.total),
            disk_read_bytes_per_s=rates.get("read"),
            disk_written_bytes_per_s=rates.get("written"),
            network_received_bytes_per_s=rates.get("received"),
            network_sent_bytes_per_s=rates.get("sent"),
        )


def _host_counters() -> dict[str, float]:
    return host_disk_counters() | network_counters()
