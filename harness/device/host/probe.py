"""The host and this process, sampled about once per second: CPU load, memory, temperature."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import psutil

from harness.device.host.details import HostDetailProbe, HostDetails
from harness.device.host.memory import read_host_memory
from harness.device.host.rss import PeakRss
from harness.device.protocol import DeviceDetails, DeviceSample


class HostSample(NamedTuple):
    """One sample of the host and the training process; None: unavailable.

    RAM is what this process can use (`harness.device.host.memory`). `process_cpu_pct` counts this process
    only, 100 % per core. `peak_rss_bytes` is the highest RSS since the previous sample. `workers_rss_bytes`
    is None without workers.
    """

    cpu_pct: float | None
    process_cpu_pct: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None
    workers_rss_bytes: int | None
    ram_used_bytes: int | None
    ram_total_bytes: int | None


class CpuLoad:
    """The load of all processors since the last reading, in percent."""

    def __init__(self, times: Callable[[], NamedTuple] = psutil.cpu_times) -> None:
        self._times = times
        self._last = _busy_and_total(times())

    def take(self) -> float | None:
        """Return the load; None when the kernel's counters have not changed since the last reading."""
        now = _busy_and_total(self._times())
        (busy, total), (busy_before, total_before) = now, self._last
        if total <= total_before:
            return None
        self._last = now
        return min(100.0, max(0.0, 100 * (busy - busy_before) / (total - total_before)))


def _busy_and_total(times: NamedTuple) -> tuple[float, float]:
    """Sum the CPU times: I/O wait is idle, and guest time is already in user time."""
    seconds = times._asdict()
    total = sum(seconds.values()) - seconds.get("guest", 0.0) - seconds.get("guest_nice", 0.0)
    return total - seconds["idle"] - seconds.get("iowait", 0.0), total


class HostProbe:
    """Samples the host and this process from one thread. Open it in the process to sample."""

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
        """Return the details; rates are means since the previous call, or since opening."""
        return self._details.read()

    def sample(self) -> HostSample:
        """Return a sample; loads and peaks cover the time since the previous one, or since opening."""
        memory = read_host_memory()
        return HostSample(
            cpu_pct=self._load.take(),
            process_cpu_pct=self._process_cpu_pct(),
            rss_bytes=int(self._process.memory_info().rss),
            peak_rss_bytes=self._peak.take(),
            workers_rss_bytes=rss_of(self._worker_pids()),
            ram_used_bytes=memory.used_bytes,
            ram_total_bytes=memory.total_bytes,
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
    """Return the total RSS of the processes that still exist; None without any. Pages that workers share
    count once per worker."""
    return sum(rss_of_each(pids)) or None


def rss_of_each(pids: Iterable[int]) -> list[int]:
    """Return the RSS of each process that still exists. One that has ended, but was not waited for, has
    none."""
    sizes = []
    for pid in pids:
        try:
            sizes.append(int(psutil.Process(pid).memory_info().rss))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [size for size in sizes if size]


class CpuTelemetry:
    """Implements `harness.device.protocol.Telemetry` for the CPU: load, RAM and temperature."""

    def __init__(self) -> None:
        self._load = CpuLoad()

    def sample(self) -> Sequence[DeviceSample]:
        """Return one sample of the device "cpu"."""
        memory = read_host_memory()
        empty = DeviceSample("cpu", *(None,) * (len(DeviceSample._fields) - 1))
        return [
            empty._replace(
                util_pct=self._load.take(),
                memory_used_bytes=memory.used_bytes,
                memory_total_bytes=memory.total_bytes,
                temperature_c=cpu_temperature_c(),
            )
        ]

    def details(self) -> Sequence[DeviceDetails]:
        """Return nothing: `HostProbe` has the host's details."""
        return ()

    def close(self) -> None:
        """Do nothing."""


_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


def cpu_temperature_c() -> float | None:
    """Return the temperature of the CPU's hottest sensor, None without sensors."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    readings = [entry.current for name in _SENSORS for entry in sensors.get(name, [])]
    return float(max(readings)) if readings else None
