"""The host and this process, sampled about once a second: processor load, memory, temperature."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import psutil

from harness.device.host_details import HostDetailProbe, HostDetails
from harness.device.protocol import DeviceDetails, DeviceSample
from harness.device.rss import PeakRss


class HostSample(NamedTuple):
    """The host and the training process at one moment; None where it is not told.

    `process_cpu_pct` counts this process alone, 100 a core. `peak_rss_bytes` is the highest RSS since the
    sample before. `workers_rss_bytes` is None without workers.
    """

    cpu_pct: float | None
    process_cpu_pct: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None
    workers_rss_bytes: int | None
    ram_used_bytes: int | None
    ram_total_bytes: int | None


class CpuLoad:
    """How busy all processors together were since the last look, in per cent."""

    def __init__(self, times: Callable[[], NamedTuple] = psutil.cpu_times) -> None:
        self._times = times
        self._last = _busy_and_total(times())

    def take(self) -> float | None:
        """None when the kernel's counters have not moved since the last look."""
        now = _busy_and_total(self._times())
        (busy, total), (busy_before, total_before) = now, self._last
        if total <= total_before:
            return None
        self._last = now
        return min(100.0, max(0.0, 100 * (busy - busy_before) / (total - total_before)))


def _busy_and_total(times: NamedTuple) -> tuple[float, float]:
    """Waiting for a disk is not work; guests' time is in user time already."""
    seconds = times._asdict()
    total = sum(seconds.values()) - seconds.get("guest", 0.0) - seconds.get("guest_nice", 0.0)
    return total - seconds["idle"] - seconds.get("iowait", 0.0), total


class HostProbe:
    """Samples the host and this process from one thread. Open it in the process it is to watch."""

    def __init__(
        self, worker_pids: Callable[[], Iterable[int]], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._worker_pids = worker_pids
        self._clock_ns = clock_ns
        self._load = CpuLoad()
        self._process = psutil.Process()
        self._peak = PeakRss()
        self._last = (clock_ns(), self._cpu_seconds())
        self._details = HostDetailProbe(worker_pids, clock_ns)

    def details(self) -> HostDetails:
        """What else the host tells; rates are those since the call before, or since opening."""
        return self._details.read()

    def sample(self) -> HostSample:
        """The moment's sample; loads and peaks are those since the sample before, or since opening."""
        ram = psutil.virtual_memory()
        return HostSample(
            cpu_pct=self._load.take(),
            process_cpu_pct=self._process_cpu_pct(),
            rss_bytes=int(self._process.memory_info().rss),
            peak_rss_bytes=self._peak.take(),
            workers_rss_bytes=rss_of(self._worker_pids()),
            ram_used_bytes=int(ram.total - ram.available),
            ram_total_bytes=int(ram.total),
        )

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _process_cpu_pct(self) -> float | None:
        now_ns, seconds = self._clock_ns(), self._cpu_seconds()
        (before_ns, seconds_before), self._last = self._last, (now_ns, seconds)
        elapsed_s = (now_ns - before_ns) / 1e9
        return 100 * (seconds - seconds_before) / elapsed_s if elapsed_s > 0 else None


def rss_of(pids: Iterable[int]) -> int | None:
    """The RSS of the processes that are still there, together; None when there is none. Pages that workers
    share with each other count once for each."""
    sizes = []
    for pid in pids:
        try:
            sizes.append(int(psutil.Process(pid).memory_info().rss))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sum(sizes) if sizes else None


class CpuTelemetry:
    """Implements `harness.device.protocol.Telemetry` for the CPU: load, RAM and, where it is told, its
    temperature."""

    def __init__(self) -> None:
        self._load = CpuLoad()

    def sample(self) -> Sequence[DeviceSample]:
        """One sample of the device "cpu"."""
        ram = psutil.virtual_memory()
        silent = DeviceSample("cpu", *(None,) * (len(DeviceSample._fields) - 1))
        return [
            silent._replace(
                util_pct=self._load.take(),
                memory_used_bytes=int(ram.total - ram.available),
                memory_total_bytes=int(ram.total),
                temperature_c=cpu_temperature_c(),
            )
        ]

    def details(self) -> Sequence[DeviceDetails]:
        """Nothing more: the host's details are told once, by `HostProbe`."""
        return ()

    def close(self) -> None:
        """Nothing to release."""


_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def cpu_temperature_c() -> float | None:
    """The hottest of the CPU's sensors, None where none is told."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    readings = [entry.current for name in _SENSORS for entry in sensors.get(name, [])]
    return float(max(readings)) if readings else None
