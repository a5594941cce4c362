"""Resource use of active runs: processes, workers, disk, energy, and the processes on each GPU."""

import shutil
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import psutil

from dashboard.data.runs import home, supervisor
from harness.analysis.machine.energy import EnergyUse, energy_use, joules_per_thousand
from harness.analysis.machine.notices import CpuFacts, GpuFacts
from harness.device.host.details import sees_machine_pids
from harness.device.machine import GpuSample, MachineSample
from harness.errors import LogError, LogMissingError
from harness.records.run import DeviceSampleRow, HostSampleRow
from harness.records.telemetry import HostDetailRow, WorkerSampleRow
from harness.store.folder import RunFolder, shown_name
from harness.store.reader import LogReader
from harness.supervisor.processes import find_process
from harness.supervisor.stored_json import read_device
from harness.words import printable

# Only this many of the newest runs are checked for activity.
_MAX_CHECKED = 20
# Energy is summed over this many of the last steps.
_ENERGY_STEPS = 5_000
# Samples, one per second, over which the use of the processors is averaged, and the fewest for that.
_CPU_MOMENTS, _LEAST_CPU_MOMENTS = 10, 5


class LiveRun(NamedTuple):
    """One active run."""

    run_id: str
    name: str
    pid: int | None
    # UUID of its device, or "cpu".
    device: str
    host: HostSampleRow | None
    details: HostDetailRow | None
    workers: Sequence[WorkerSampleRow]
    energy: EnergyUse | None
    joules_per_thousand: float | None
    # The host that trains it.
    machine: str | None = None
    # Torch's name of its device: "cuda:0".
    torch_name: str | None = None
    # The newest sample of its device.
    sample: DeviceSampleRow | None = None
    # Why the run's log cannot be read; everything else is then unknown.
    problem: str | None = None


class User(NamedTuple):
    """A process on a GPU."""

    pid: int
    # None if process IDs cannot be matched with those of this system, or if it has ended.
    program: str | None
    memory_bytes: int | None
    # The name of the run, if the process is one.
    run: str | None


class Users(NamedTuple):
    """The processes on a GPU. `users` is None if the driver does not report them."""

    users: Sequence[User] | None
    # The runs on this GPU.
    runs: Sequence[LiveRun]
    # True if the driver's process IDs are those of this system; in a container they are not.
    are_matched: bool

    @property
    def strangers(self) -> int | None:
        """Number of processes that are not runs; if IDs do not match, the number in excess of runs."""
        if self.users is None:
            return None
        if self.are_matched:
            return sum(user.run is None for user in self.users)
        return max(0, len(self.users) - len(self.runs))

    @property
    def strangers_bytes(self) -> int | None:
        """Total memory of these processes; None if unknown, also of one of them."""
        if self.users is None or not self.are_matched:
            return None
        sizes = [user.memory_bytes for user in self.users if user.run is None]
        measured = [size for size in sizes if size is not None]
        return sum(measured) if len(measured) == len(sizes) else None


def users_of(uuid: str, moment: GpuSample | None, runs: Sequence[LiveRun]) -> Users:
    """Return the processes on the GPU `uuid`, most memory first."""
    here = [run for run in runs if run.device == uuid]
    are_matched = sees_machine_pids()
    if moment is None or moment.details.processes is None:
        return Users(None, here, are_matched)
    by_pid = {run.pid: run.name for run in runs if run.pid is not None} if are_matched else {}
    users = [
        User(
            process.pid,
            _program(process.pid) if are_matched else None,
            process.memory_bytes,
            by_pid.get(process.pid),
        )
        for process in moment.details.processes
    ]
    return Users(sorted(users, key=lambda user: -(user.memory_bytes or 0)), here, are_matched)


def facts(name: str, moment: GpuSample | None, used: Users) -> GpuFacts:
    """Return the facts about a GPU that findings are derived from."""
    sample = None if moment is None else moment.sample
    return GpuFacts(
        name=name,
        throttle_reasons=None if sample is None else sample.throttle_reasons,
        memory_used_bytes=None if sample is None else sample.memory_used_bytes,
        memory_total_bytes=None if sample is None else sample.memory_total_bytes,
        ecc_uncorrected=None if moment is None else moment.details.ecc_uncorrected,
        runs=len(used.runs),
        strangers=used.strangers,
        strangers_bytes=used.strangers_bytes,
        util_pct=None if sample is None else sample.util_pct,
    )


def _program(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def live_runs() -> list[LiveRun]:
    """Return every active run, newest first. Simulated runs, which use no resources, and runs without a log
    are excluded. Raises HomeError."""
    runs = []
    for folder in home().newest(_MAX_CHECKED):
        if supervisor().status(folder).state.is_over or supervisor().summary(folder).is_simulated:
            continue
        try:
            runs.append(read_run(folder))
        except LogMissingError:
            continue
        except LogError as error:
            runs.append(_unreadable(folder, str(error)))
    return runs


def _unreadable(folder: RunFolder, problem: str) -> LiveRun:
    process = find_process(folder)
    pid = None if process is None else process.pid
    return LiveRun(folder.run_id, folder.request().name, pid, "", None, None, (), None, None, problem=problem)


def read_run(folder: RunFolder) -> LiveRun:
    """Read the resource use of one run. Raises LogError."""
    process = find_process(folder)
    with LogReader(folder.log) as log:
        run = log.run()
        facts = read_device(run.device)
        device = "cpu" if facts is None else facts.uuid or facts.kind.value
        energy = _energy(log, device)
        return LiveRun(
            run_id=folder.run_id,
            name=shown_name(run.name, folder.run_id),
            pid=None if process is None else process.pid,
            device=device,
            host=log.latest_host_sample(),
            details=log.telemetry.latest_host(),
            workers=log.telemetry.workers(),
            energy=energy,
            joules_per_thousand=joules_per_thousand(energy, _samples(log, energy)),
            machine=printable(run.host),
            torch_name=None if facts is None else facts.torch_name,
            sample=next((row for row in log.latest_device_samples() if row.device == device), None),
        )


def _energy(log: LogReader, device: str) -> EnergyUse | None:
    last = log.extent().last
    if last is None:
        return None
    return energy_use(log.telemetry.details(device, max(0, last - _ENERGY_STEPS), last, max_points=100))


def _samples(log: LogReader, energy: EnergyUse | None) -> int | None:
    """Return the number of samples trained on in the steps that `energy` covers."""
    if energy is None:
        return None
    return log.telemetry.samples_trained(energy.first_step + 1, energy.last_step)


def cpu_facts(moments: Sequence[MachineSample]) -> CpuFacts:
    """Return the facts about the processors, with their mean use over the newest moments."""
    busy = [moment.host.cpu_pct for moment in moments[-_CPU_MOMENTS:] if moment.host.cpu_pct is not None]
    host = moments[-1].host
    return CpuFacts(fmean(busy) if len(busy) >= _LEAST_CPU_MOMENTS else None, host.load, host.cores)


def disk_free_bytes() -> int | None:
    """Return the free space on the disk of the home; None where there is no home yet."""
    try:
        return shutil.disk_usage(home().path).free
    except OSError:
        return None
