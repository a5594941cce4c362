"""The tables of the System page: processes on a GPU, throttle reasons, and resources used by the runs."""

import socket
from collections.abc import Sequence

import streamlit as st

from dashboard.components import heading, plain, table
from dashboard.data.live_runs import LiveRun, Users
from harness import words
from harness.analysis.machine.throttle import THROTTLE_TEXTS, throttle_times
from harness.device.machine import GpuSample, MachineSample
from harness.records.telemetry import DeviceDetailRow

# Names of the fields that a GPU may not report.
_NAMED = {
    "util_pct": "utilization",
    "memory_util_pct": "memory utilization",
    "memory_used_bytes": "memory",
    "power_w": "power",
    "power_limit_w": "power limit",
    "temperature_c": "temperature",
    "sm_clock_mhz": "clock",
    "memory_clock_mhz": "memory clock",
    "throttle_reasons": "throttle reasons",
    "energy_j": "energy",
    "pcie_received_bytes_per_s": "PCIe",
    "held_power_ns": "time at the power limit",
    "held_thermal_ns": "time in thermal slowdown",
    "held_hw_thermal_ns": "time in hardware thermal slowdown",
    "held_power_brake_ns": "time in power brake slowdown",
    "held_sync_boost_ns": "time limited by sync boost",
    "ecc_corrected": "ECC errors",
    "processes": "processes",
    "sm_active_pct": "active SMs",
    "sm_occupancy_pct": "occupancy",
    "tensor_active_pct": "tensor cores",
    "dram_active_pct": "memory bandwidth",
}


def user_table(uuid: str, used: Users) -> None:
    """Draw the processes on a GPU."""
    if used.users is None:
        return
    if not used.users:
        st.caption(":material/person_off: No process uses this GPU.")
        return
    rows = [
        {
            "Process": str(user.pid),
            "Program": user.program or words.NOT_AVAILABLE,
            "GPU memory": words.size(user.memory_bytes),
            "Owner": f"run {user.run}" if user.run else "another process" if used.are_matched else "unknown",
        }
        for user in used.users
    ]
    _table(rows, f"users_{uuid}", "Processes on this GPU, most memory first.", ("GPU memory",))
    if not used.are_matched:
        st.caption(
            "The driver reports process IDs of the host; in this container they cannot be matched with runs."
        )


def throttle_table(uuid: str, moments: Sequence[MachineSample]) -> None:
    """Draw why and for how long a GPU was throttled."""
    gpu_moments = [moment.gpus[uuid] for moment in moments if uuid in moment.gpus]
    rows = [_row(gpu) for gpu in gpu_moments]
    entries = throttle_times(gpu_moments[-1].sample.throttle_reasons, rows)
    reported = [entry for entry in entries if entry.total_ns is not None]
    throttled = [entry for entry in reported if entry.total_ns or entry.is_active]
    if not throttled:
        if reported:
            st.caption(":material/speed: Not throttled since the driver was loaded.")
        return
    table = [
        {
            "Throttled because it is": THROTTLE_TEXTS[entry.reason],
            "Now": words.NOT_AVAILABLE if entry.is_active is None else "yes" if entry.is_active else "no",
            "In the last two minutes": _time(entry.recent_ns),
            "Since the driver was loaded": _time(entry.total_ns),
        }
        for entry in throttled
    ]
    _table(table, f"held_{uuid}", "Throttle reasons and how long each applied.", tuple(table[0])[2:])


def _time(throttled_ns: int | None) -> str:
    return "none" if throttled_ns == 0 else words.duration(throttled_ns)


def _row(gpu: GpuSample) -> DeviceDetailRow:
    """Return the moment's details as a log row; its time and step are not used."""
    return DeviceDetailRow(
        seq=0, t_ns=0, step=0, **gpu.details._asdict() | {"processes": None, "processes_bytes": None}
    )


def missing_lines(now: GpuSample) -> None:
    """Draw the metrics that are not reported, by reason."""
    by_reason: dict[str, list[str]] = {}
    for field, name in _NAMED.items():
        if field in now.missing:
            by_reason.setdefault(now.missing[field], []).append(name)
    if by_reason:
        text = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        st.caption(f":material/info: n/a: {plain(text)}")


def run_tables(runs: Sequence[LiveRun]) -> None:
    """Draw the resources used by each active run and by its workers."""
    heading("Active runs")
    _table(
        [_run(run) for run in runs],
        "live_runs",
        "Resources used by each active run.",
        ("CPU", "RAM", "Workers' CPU", "Disk reads", "Disk writes", "Energy per 1,000 samples", "Sampling"),
    )
    energy = (
        ""
        if all(run.energy for run in runs if run.problem is None)
        else " Energy needs an NVIDIA GPU that reports it."
    )
    st.caption(
        "CPU is 100 % per core. Sampling is the CPU time of recording these figures in the training process, "
        f"as a share of one core, outside of the training thread.{energy}"
    )
    if any(run.machine not in (None, socket.gethostname()) for run in runs):
        _device_table(runs)
    for run in runs:
        if run.problem is not None:
            st.warning(f"{plain(run.name)}: {plain(run.problem)}", icon=":material/database_off:")
    workers = [
        {
            "Worker of": run.name,
            "Process": str(worker.pid),
            "CPU": words.percent(worker.cpu_pct),
            "RAM": words.size(worker.rss_bytes),
        }
        for run in runs
        if run.details is not None and run.details.workers
        for worker in run.workers
    ]
    if workers:
        _table(workers, "workers", "DataLoader workers, sampled every few seconds.", ("CPU", "RAM"))


def _device_table(runs: Sequence[LiveRun]) -> None:
    """Draw the devices of active runs, by host and device."""
    heading("Devices of active runs")
    ordered = sorted(runs, key=lambda run: (run.machine or "", run.torch_name or ""))
    rows = [_device(run) for run in ordered if run.problem is None]
    _table(rows, "run_devices", "Devices of active runs.", ("Utilization", "Memory", "Power", "Temperature"))


def _device(run: LiveRun) -> dict[str, str]:
    sample = run.sample
    return {
        "Host": run.machine or words.NOT_AVAILABLE,
        "Device": run.torch_name or words.NOT_AVAILABLE,
        "UUID": words.NOT_AVAILABLE if run.device in ("", run.torch_name) else run.device,
        "Run": run.name,
        "Utilization": words.percent(None if sample is None else sample.util_pct),
        "Memory": words.size(None if sample is None else sample.memory_used_bytes),
        "Power": _unit(None if sample is None else sample.power_w, "W"),
        "Temperature": _unit(None if sample is None else sample.temperature_c, "°C"),
    }


def _unit(value: float | None, unit: str) -> str:
    return words.NOT_AVAILABLE if value is None else f"{value:.0f} {unit}"


def _run(run: LiveRun) -> dict[str, str]:
    host, details = run.host, run.details
    joules = run.joules_per_thousand
    return {
        "Run": run.name,
        "Process": words.NOT_AVAILABLE if run.pid is None else str(run.pid),
        "CPU": words.percent(None if host is None else host.process_cpu_pct),
        "RAM": words.size(None if host is None else host.rss_bytes),
        "Workers' CPU": _workers(run),
        "Disk reads": _rate(None if details is None else details.disk_read_bytes_per_s),
        "Disk writes": _rate(None if details is None else details.disk_written_bytes_per_s),
        "Energy per 1,000 samples": words.energy(joules),
        "Sampling": words.NOT_AVAILABLE
        if details is None or details.sampling_pct is None
        else f"{details.sampling_pct:.2f} %",
    }


def _workers(run: LiveRun) -> str:
    if run.details is None:
        return words.NOT_AVAILABLE
    if not run.details.workers:
        return "no workers"
    return f"{words.percent(run.details.workers_cpu_pct)} ({run.details.workers})"


def _rate(value_bytes_per_s: float | None) -> str:
    return words.NOT_AVAILABLE if value_bytes_per_s is None else f"{words.size(value_bytes_per_s)}/s"


def _table(rows: Sequence[dict[str, str]], key: str, about: str, numbers: Sequence[str]) -> None:
    columns = {name: st.column_config.TextColumn(alignment="right") for name in numbers}
    table(rows, alt=about, columns=columns, key=key)
