"""Details of the host that psutil reads cheaply: the loader's workers, disk and network."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

# The kernel's constant PROC_PID_INIT_INO: the initial pid namespace of the machine.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


class WorkerLoad(NamedTuple):
    """One worker process; `cpu_pct` is 100 % per core, None at its first reading."""

    pid: int
    cpu_pct: float | None
    rss_bytes: int | None


class HostDetails(NamedTuple):
    """Rates since the previous reading; None: unavailable. Disk rates are those of this process and its
    workers, network rates those of the whole host without loopback."""

    workers: tuple[WorkerLoad, ...]
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None


class Rates:
    """Converts counters to rates. A counter that is new, missing or lower than before has no rate."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._at_ns = clock_ns()
        self._before: Mapping[str, float] = {}

    def take(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Return the increase per second of each counter since the previous call."""
        now_ns = self._clock_ns()
        elapsed_s = (now_ns - self._at_ns) / 1e9
        before, self._before, self._at_ns = self._before, dict(counters), now_ns
        if elapsed_s <= 0:
            return {}
        return {
            name: (value - before[name]) / elapsed_s
            for name, value in counters.items()
            if name in before and value >= before[name]
        }


class HostDetailProbe:
    """Reads this process, its workers and the network from one thread."""

    def __init__(
        self, worker_pids: Callable[[], Iterable[int]], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._worker_pids = worker_pids
        self._own = psutil.Process()
        self._workers: dict[int, psutil.Process] = {}
        self._rates = Rates(clock_ns)
        self._rates.take(self._own_counters() | network_counters())

    def read(self) -> HostDetails:
        """Return the details; rates are means since the previous call."""
        workers = self._open_workers()
        counters = self._own_counters() | network_counters()
        sizes: dict[int, int] = {}
        for pid, process in workers.items():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    sizes[pid] = int(process.memory_info().rss)
                counters[f"cpu {pid}"] = times.user + times.system
                counters |= _disk_counters(process)
            except psutil.Error:
                continue
        rates = self._rates.take(counters)
        loads = tuple(
            WorkerLoad(pid, _percent(rates.get(f"cpu {pid}")), sizes[pid]) for pid in workers if pid in sizes
        )
        return HostDetails(
            workers=loads,
            disk_read_bytes_per_s=_sum(rates, "read "),
            disk_written_bytes_per_s=_sum(rates, "written "),
            network_received_bytes_per_s=rates.get("received"),
            network_sent_bytes_per_s=rates.get("sent"),
        )

    def _own_counters(self) -> dict[str, float]:
        try:
            return _disk_counters(self._own)
        except psutil.Error:
            return {}

    def _open_workers(self) -> Mapping[int, psutil.Process]:
        """Return the current workers, each opened once, because opening queries the system."""
        pids = set(self._worker_pids())
        for pid in pids - self._workers.keys():
            try:
                self._workers[pid] = psutil.Process(pid)
            except psutil.Error:
                continue
        for pid in self._workers.keys() - pids:
            del self._workers[pid]
        return self._workers


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _sum(rates: Mapping[str, float], prefix: str) -> float | None:
    values = [rate for name, rate in rates.items() if name.startswith(prefix)]
    return sum(values) if values else None


def _disk_counters(process: psutil.Process) -> dict[str, float]:
    """Return the bytes read from and written to disks, without page cache hits. Unavailable on macOS."""
    if not hasattr(process, "io_counters"):
        return {}
    counters = process.io_counters()
    return {f"read {process.pid}": counters.read_bytes, f"written {process.pid}": counters.write_bytes}


def network_counters() -> dict[str, float]:
    """Return the bytes that the host received and sent since boot, without loopback; empty if unavailable."""
    interfaces = [
        interface
        for name, interface in psutil.net_io_counters(pernic=True).items()
        if not name.startswith("lo")
    ]
    if not interfaces:
        return {}
    return {
        "received": sum(interface.bytes_recv for interface in interfaces),
        "sent": sum(interface.bytes_sent for interface in interfaces),
    }


def host_disk_counters() -> dict[str, float]:
    """Return the bytes that the host read from and wrote to disks since boot; empty if unavailable."""
    try:
        counters = psutil.disk_io_counters()
    except (OSError, RuntimeError):
        return {}
    return {} if counters is None else {"read": counters.read_bytes, "written": counters.write_bytes}


def sees_machine_pids(link: Path = Path("/proc/self/ns/pid")) -> bool:
    """Return whether process numbers here are those of the machine, as NVML's are; in a container they are
    not."""
    try:
        return str(link.readlink()) == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
