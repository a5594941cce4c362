"""Energy, PCIe, held clocks, ECC, processes and GPM: each told in base units, each missing alone."""

import pynvml
import pytest

from harness.device.nvml.details import FIELDS
from harness.device.nvml.driver import Nvml
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import DeviceDetails, DeviceProcess
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.telemetry import PcieMethod, ThrottleReason

SECOND_NS = 1_000_000_000
MIB = 1 << 20
POWER = FIELDS["NVML_FI_DEV_PERF_POLICY_POWER"]
PCIE = {name for name in DeviceDetails._fields if name.startswith("pcie")}
HELD = {name for name in DeviceDetails._fields if name.startswith("held")}
GPM = {"sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct"}


class Bench:
    """Details of one fake GPU; a second passes between two looks."""

    def __init__(self, gpu: FakeGpu | None = None) -> None:
        self.now_ns = 0
        self.gpu = gpu or FakeGpu()
        self.library = FakeNvml([self.gpu])
        self.warnings: list[str] = []
        self.telemetry = NvmlTelemetry(
            Nvml(self.library), [self.gpu.uuid], self.warnings.append, lambda: self.now_ns
        )

    def read_details(self) -> DeviceDetails:
        self.now_ns += SECOND_NS
        (details,) = self.telemetry.details()
        return details

    def why(self, field: str) -> str:
        return self.telemetry.missing()[self.gpu.uuid][field]


def silent(details: DeviceDetails) -> set[str]:
    return {name for name, value in details._asdict().items() if value is None}


def test_everything_is_told_in_base_units() -> None:
    bench = Bench()
    bench.read_details()
    assert bench.read_details() == DeviceDetails(
        device=bench.gpu.uuid,
        energy_j=90_000.0,
        pcie_sent_bytes_per_s=2.5 * MIB,
        pcie_received_bytes_per_s=40 * MIB,
        pcie_method=PcieMethod.GPM,
        held_power_ns=12 * SECOND_NS,
        held_thermal_ns=0,
        held_hw_thermal_ns=0,
        held_power_brake_ns=0,
        held_sync_boost_ns=0,
        ecc_corrected=3,
        ecc_uncorrected=0,
        processes=(DeviceProcess(4711, 19_000 << 20),),
        sm_active_pct=82.5,
        sm_occupancy_pct=41.0,
        tensor_active_pct=36.0,
        dram_active_pct=47.0,
    )
    assert bench.telemetry.missing() == {bench.gpu.uuid: {}}


def test_what_needs_two_looks_is_missing_at_the_first() -> None:
    bench = Bench()
    assert silent(bench.read_details()) == GPM | {"pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"}
    assert "first" in bench.why("sm_active_pct")
    assert silent(bench.read_details()) == set()


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", {"energy_j"}),
        ("nvmlDeviceGetTotalEccErrors", {"ecc_corrected", "ecc_uncorrected"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes"}),
        ("nvmlGpmQueryDeviceSupport", GPM),
    ],
)
@pytest.mark.parametrize(
    ("error", "reason"),
    [("NotSupported", ""), ("NoPermission", "no permission"), ("FunctionNotFound", "old")],
)
def test_an_unsupported_metric_is_missing_alone_with_its_reason(
    function: str, fields: set[str], error: str, reason: str
) -> None:
    bench = Bench()
    bench.library.fail(function, error)
    bench.read_details()
    assert silent(bench.read_details()) == fields
    assert all(reason in bench.why(field) for field in fields)
    assert bench.warnings == []


def test_a_gpu_before_hopper_has_no_gpm_and_says_what_it_takes() -> None:
    bench = Bench(FakeGpu(has_gpm=False))
    bench.read_details()
    assert silent(bench.read_details()) == GPM
    assert "Hopper" in bench.why("tensor_active_pct")


def test_one_gpm_metric_may_be_missing_among_others() -> None:
    gpu = FakeGpu()
    del gpu.gpm[pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL]
    bench = Bench(gpu)
    bench.read_details()
    assert silent(bench.read_details()) == {"dram_active_pct"}


@pytest.mark.parametrize("has_gpm", [True, False])
def test_without_gpm_the_drivers_own_window_is_named_as_such(has_gpm: bool) -> None:
    gpu = FakeGpu(has_gpm=has_gpm)
    del gpu.gpm[pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC]
    bench = Bench(gpu)
    bench.read_details()
    details = bench.read_details()
    assert details.pcie_method == PcieMethod.WINDOW
    assert (details.pcie_sent_bytes_per_s, details.pcie_received_bytes_per_s) == (2_000 * 1024, 40_000 * 1024)


def test_without_any_way_to_tell_pcie_is_missing_alone() -> None:
    bench = Bench(FakeGpu(has_gpm=False))
    bench.library.fail("nvmlDeviceGetPcieThroughput", "NotSupported")
    bench.read_details()
    assert silent(bench.read_details()) == PCIE | GPM


def test_a_field_of_32_bits_is_read_as_such() -> None:
    bench = Bench()
    bench.gpu.fields[POWER] = (1 << 40) + 7
    bench.gpu.field_types[POWER] = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert bench.read_details().held_power_ns == 7


def test_an_older_driver_tells_held_clocks_by_power_and_heat() -> None:
    gpu = FakeGpu(violations_ns=(5, 6))
    gpu.fields.clear()
    details = Bench(gpu).read_details()
    assert (details.held_power_ns, details.held_thermal_ns) == (5, 6)
    assert details.held_hw_thermal_ns is None


def test_no_field_values_at_all_leave_everything_else_told() -> None:
    bench = Bench()
    bench.library.fail("nvmlDeviceGetFieldValues", "FunctionNotFound")
    bench.library.fail("nvmlDeviceGetViolationStatus", "NotSupported")
    bench.read_details()
    assert silent(bench.read_details()) == HELD


def test_a_process_that_computes_and_draws_is_one() -> None:
    gpu = FakeGpu(compute=[(7, 100), (8, None)], graphics=[(7, 300), (9, 5)])
    assert Bench(gpu).read_details().processes == (
        DeviceProcess(7, 300),
        DeviceProcess(8, None),
        DeviceProcess(9, 5),
    )


def test_an_idle_gpu_has_no_processes_which_is_not_missing() -> None:
    bench = Bench(FakeGpu(compute=[]))
    bench.library.fail("nvmlDeviceGetGraphicsRunningProcesses", "NotSupported")
    assert bench.read_details().processes == ()


def test_a_lost_gpu_ends_samples_and_details_with_one_warning() -> None:
    bench = Bench()
    bench.read_details()
    bench.library.fail("nvmlDeviceGetTotalEnergyConsumption", "GpuIsLost")
    assert list(bench.telemetry.details()) == []
    assert list(bench.telemetry.sample()) == []
    assert len(bench.warnings) == 1


def test_closing_frees_what_gpm_holds() -> None:
    bench = Bench()
    bench.read_details()
    assert bench.library.gpm_samples == 2
    bench.telemetry.close()
    bench.telemetry.close()
    assert bench.library.gpm_samples == 0
    assert bench.library.users == 0


def test_devices_are_listed_by_uuid_and_name() -> None:
    gpus = [FakeGpu(), FakeGpu(uuid="GPU-two", name="Other")]
    library = FakeNvml(gpus)
    with Nvml(library) as nvml:
        assert nvml.devices() == [(gpus[0].uuid, "NVIDIA H200 (fake)"), ("GPU-two", "Other")]
        library.fail("nvmlDeviceGetUUID", "Unknown")
        assert nvml.devices() == []


@pytest.mark.parametrize("name", FIELDS)
def test_field_numbers_are_the_installed_modules(name: str) -> None:
    if not hasattr(pynvml, name):
        pytest.skip(f"{name} is newer than the installed pynvml")
    assert getattr(pynvml, name) == FIELDS[name]


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (ThrottleReason.GPU_IDLE, "GpuIdle"),
        (ThrottleReason.APPLICATION_CLOCKS, "ApplicationsClocksSetting"),
        (ThrottleReason.POWER_CAP, "SwPowerCap"),
        (ThrottleReason.HW_SLOWDOWN, "HwSlowdown"),
        (ThrottleReason.SYNC_BOOST, "SyncBoost"),
        (ThrottleReason.SW_THERMAL, "SwThermalSlowdown"),
        (ThrottleReason.HW_THERMAL, "HwThermalSlowdown"),
        (ThrottleReason.POWER_BRAKE, "HwPowerBrakeSlowdown"),
        (ThrottleReason.DISPLAY_CLOCKS, "DisplayClockSetting"),
    ],
)
def test_throttle_bits_are_the_drivers(reason: ThrottleReason, name: str) -> None:
    assert getattr(pynvml, f"nvmlClocksEventReason{name}") == reason
