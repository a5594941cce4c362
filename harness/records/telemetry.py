"""Rows of detailed telemetry of devices and the host, and the reasons for throttled clocks.

As in `harness.records.run`: a `Row` binds to its table, `None` means "not measured", units are base units.
"""

from enum import IntFlag, StrEnum
from typing import NamedTuple


class ThrottleReason(IntFlag):
    """The reasons for a GPU's reduced clocks: NVML's `nvmlClocksEventReason*` bits."""

    GPU_IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


class PcieMethod(StrEnum):
    """The source of a PCIe rate."""

    # NVML's GPM (Hopper and newer): all traffic since the previous sample.
    GPM = "gpm"
    # Of older logs: NVML's byte counters, which wrap after 4 GiB.
    COUNTERS = "counters"
    # The driver's measurement over 20 ms within the second; short bursts are missed or overstated.
    WINDOW = "window"


class DeviceDetailRow(NamedTuple):
    """Detailed telemetry of one device, for the `DeviceSampleRow` of the same `seq`.

    Counters are cumulative since the driver was loaded; the value for a range is a difference. The table's
    byte counters of PCIe traffic are of older logs: NVML's wrap after 4 GiB.
    """

    device: str
    seq: int
    t_ns: int
    step: int
    energy_j: float | None
    # From the device to the host.
    pcie_sent_bytes_per_s: float | None
    pcie_received_bytes_per_s: float | None
    pcie_method: str | None
    # Time throttled by the power limit.
    held_power_ns: int | None
    # Time throttled by software, to stay below the temperature limit.
    held_thermal_ns: int | None
    # Time with clocks halved or lower by hardware, because of temperature.
    held_hw_thermal_ns: int | None
    # Time with clocks halved or lower by an external power brake signal.
    held_power_brake_ns: int | None
    # Time with clocks reduced to those of other GPUs in the same sync boost group.
    held_sync_boost_ns: int | None
    # Memory errors corrected since the driver was loaded.
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    # The number of processes that use the device.
    processes: int | None
    # The memory of these processes; None when that of one is not available.
    processes_bytes: int | None
    # Share of multiprocessors that were busy, over time (GPM, Hopper and newer).
    sm_active_pct: float | None
    # Resident warps, of the maximum.
    sm_occupancy_pct: float | None
    # Share of the time in which tensor cores were active.
    tensor_active_pct: float | None
    # Memory bandwidth used, of the maximum.
    dram_active_pct: float | None


class DeviceProcessRow(NamedTuple):
    """One process on a device. Rows are written when the processes or their memory change."""

    device: str
    seq: int
    # NVML's pid: in a container that of the host, not the one inside.
    pid: int
    t_ns: int
    name: str | None
    memory_bytes: int | None
    # 1: the training process itself; None when pids cannot be matched.
    is_own: int | None


class HostDetailRow(NamedTuple):
    """Detailed telemetry of the host and the training process, for the `HostSampleRow` of the same `seq`.

    Rates are means since the previous sample. Disk rates are those of the training process and its workers.
    """

    seq: int
    t_ns: int
    step: int
    # The number of the loader's worker processes.
    workers: int
    # Sum over all workers, 100 % per core.
    workers_cpu_pct: float | None
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    # Of the whole host, without loopback.
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None
    # Wall time of taking this sample.
    sampling_wall_ns: int
    # CPU time of taking this sample.
    sampling_cpu_ns: int
    # CPU time divided by the time since the previous sample: the share of one core.
    sampling_pct: float | None


class WorkerSampleRow(NamedTuple):
    """One sample of one loader worker; taken every few seconds."""

    seq: int
    pid: int
    t_ns: int
    # Of one core, since the previous row.
    cpu_pct: float | None
    # Shared pages count in full.
    rss_bytes: int | None
