"""The rows about what the device and the host do beside the basic samples, and the reasons for held clocks.

As in `harness.records`: a `Row` binds to its table as it is, `None` means "not measured", and units are base
units.
"""

from enum import IntFlag, StrEnum
from typing import NamedTuple


class ThrottleReason(IntFlag):
    """Why a GPU's clocks are below their highest: NVML's `nvmlClocksEventReason*` bits."""

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
    """Where a PCIe rate comes from."""

    # The device's own byte counters: everything since the sample before.
    COUNTERS = "counters"
    # The driver's measurement over 20 ms within the second; short bursts are missed or overstated.
    WINDOW = "window"


class DeviceDetailRow(NamedTuple):
    """More of what one device said at one moment, beside the `DeviceSampleRow` of the same `seq`.

    Counters are cumulative since the driver was loaded; what happened in a range is a difference.
    """

    device: str
    seq: int
    t_ns: int
    step: int
    energy_j: float | None
    # Sent by the device.
    pcie_sent_bytes: int | None
    pcie_received_bytes: int | None
    pcie_sent_bytes_per_s: float | None
    pcie_received_bytes_per_s: float | None
    pcie_method: str | None
    # Clocks held back by the power limit.
    held_power_ns: int | None
    # Clocks held back by software, to stay below the temperature limit.
    held_thermal_ns: int | None
    # Clocks halved or less by hardware, too hot.
    held_hw_thermal_ns: int | None
    # Clocks halved or less by a signal from outside, from the power supply.
    held_power_brake_ns: int | None
    # Clocks held to those of other GPUs in the same group.
    held_sync_boost_ns: int | None
    # Memory errors corrected since the driver was loaded.
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    # Processes that use the device.
    processes: int | None
    # Memory they hold together; None when one of them is not told.
    processes_bytes: int | None
    # Share of multiprocessors that were busy, over time (GPM, Hopper and newer).
    sm_active_pct: float | None
    # Warps in flight over the most there could be.
    sm_occupancy_pct: float | None
    # Share of the time in which tensor cores worked.
    tensor_active_pct: float | None
    # Memory bandwidth used, of the most there is.
    dram_active_pct: float | None


class DeviceProcessRow(NamedTuple):
    """One process on a device, as of a change: rows are written when the processes or their memory change."""

    device: str
    seq: int
    # As NVML says it: in a container the host's number, which is not the one seen inside.
    pid: int
    t_ns: int
    name: str | None
    memory_bytes: int | None
    # 1: the training process itself; None where process numbers cannot be matched.
    is_own: int | None


class HostDetailRow(NamedTuple):
    """More of the host and the training process at one moment, beside the `HostSampleRow` of the same `seq`.

    Rates are means since the sample before. The disk's are those of the training process and its workers.
    """

    seq: int
    t_ns: int
    step: int
    # Worker processes of the loader.
    workers: int
    # All workers together, 100 a core.
    workers_cpu_pct: float | None
    disk_read_bytes_per_s: float | None
    disk_written_bytes_per_s: float | None
    # By the whole host, loopback left out.
    network_received_bytes_per_s: float | None
    network_sent_bytes_per_s: float | None
    # How long taking this sample took.
    sampling_wall_ns: int
    # Processor time it took.
    sampling_cpu_ns: int
    # That time over the time since the sample before: the share of one core.
    sampling_pct: float | None


class WorkerSampleRow(NamedTuple):
    """One worker of the loader at one moment; taken every few seconds."""

    seq: int
    pid: int
    t_ns: int
    # Of one core, since the row before.
    cpu_pct: float | None
    # Pages shared with others count in full.
    rss_bytes: int | None
