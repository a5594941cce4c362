"""Samples of devices and host about once per second, with the time that sampling takes."""

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil

from harness.device.host.details import HostDetails, sees_machine_pids
from harness.device.host.probe import HostProbe
from harness.device.protocol import DeviceDetails, DeviceProcess, Telemetry
from harness.records.run import DeviceSampleRow, HostSampleRow
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow
from harness.watch.context import RunContext

Number = TypeVar("Number", int, float)
# Single workers are recorded at every fifth sample.
WORKERS_EVERY = 5
# Details are recorded at every second one: on an H100, NVML takes 2.4 ms of the processor for the energy
# counter and 0.6 ms for the throttled times, more than for all the rest together.
DETAILS_EVERY = 2


class TelemetryRecorder:
    """A job of the sampler: reads every source once per call, and records the readings with the newest
    step."""

    def __init__(
        self,
        context: RunContext,
        sources: Sequence[Telemetry],
        host: HostProbe,
        cpu_clock_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`cpu_clock_ns` returns the CPU time of the sampling thread."""
        self._sources = sources
        self._host = host
        self._put = context.journal.put
        self._context = context
        self._cpu_clock_ns = cpu_clock_ns
        self._seq = 0
        self._sampled_ns: int | None = None
        self._users: dict[str, tuple[DeviceProcess, ...]] = {}
        self._own_pid = os.getpid() if sees_machine_pids() else None
        self._names: dict[int, str | None] = {}

    def sample(self) -> None:
        """Take one sample of all sources."""
        context = self._context
        t_ns, cpu_ns, step = context.clock_ns(), self._cpu_clock_ns(), context.last_step
        for source in self._sources:
            for sample in source.sample():
                self._put(DeviceSampleRow(sample.device, self._seq, t_ns, step, *sample[1:]))
            if self._seq % DETAILS_EVERY == 0:
                for details in source.details():
                    self._put_details(details, t_ns, step)
        self._put(HostSampleRow(self._seq, t_ns, step, *self._host.sample()))
        host = self._host.details()
        self._put_workers(host, t_ns)
        before_ns, self._sampled_ns = self._sampled_ns, t_ns
        cpu_ns = self._cpu_clock_ns() - cpu_ns
        self._put(
            HostDetailRow(
                self._seq,
                t_ns,
                step,
                len(host.workers),
                _sum([worker.cpu_pct for worker in host.workers]),
                *host[1:],
                sampling_wall_ns=context.clock_ns() - t_ns,
                sampling_cpu_ns=cpu_ns,
                sampling_pct=None if before_ns is None else 100 * cpu_ns / max(t_ns - before_ns, 1),
            )
        )
        self._seq += 1

    def _put_details(self, details: DeviceDetails, t_ns: int, step: int) -> None:
        users = details.processes
        count = None if users is None else len(users)
        processes_bytes = None if not users else _sum([user.memory_bytes for user in users])
        values = details._asdict() | {
            "processes": count,
            "processes_bytes": 0 if count == 0 else processes_bytes,
        }
        self._put(DeviceDetailRow(seq=self._seq, t_ns=t_ns, step=step, **values))
        if users is None or users == self._users.get(details.device):
            return
        self._users[details.device] = users
        pids = {user.pid for processes in self._users.values() for user in processes}
        self._names = {pid: name for pid, name in self._names.items() if pid in pids}
        for user in users:
            is_own = None if self._own_pid is None else int(user.pid == self._own_pid)
            name = self._name(user.pid)
            self._put(
                DeviceProcessRow(details.device, self._seq, user.pid, t_ns, name, user.memory_bytes, is_own)
            )

    def _put_workers(self, host: HostDetails, t_ns: int) -> None:
        if self._seq % WORKERS_EVERY:
            return
        for worker in host.workers:
            self._put(WorkerSampleRow(self._seq, worker.pid, t_ns, worker.cpu_pct, worker.rss_bytes))

    def _name(self, pid: int) -> str | None:
        """Return the program's name; None if process ids are of another namespace."""
        if self._own_pid is None:
            return None
        if pid not in self._names:
            try:
                self._names[pid] = psutil.Process(pid).name()
            except psutil.Error:
                self._names[pid] = None
        return self._names[pid]


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum; None if a value is missing or there is none."""
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None
