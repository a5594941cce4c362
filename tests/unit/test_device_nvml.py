import inspect

import pynvml
import pytest

from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import DeviceSample
from harness.device.testing.nvml import FakeGpu, FakeNvml

UUID = FakeGpu().uuid


class Bench:
    """A telemetry over one fake GPU, with its warnings and a clock that only the test moves."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.now_ns = 0
        self.cost_ns: dict[str, int] = {}
        self.warnings: list[str] = []
        self.gpus = gpus or (FakeGpu(),)
        self.library = FakeNvml(self.gpus, on_call=self._spend)
        self.telemetry = NvmlTelemetry(
            Nvml(self.library), [gpu.uuid for gpu in self.gpus], self.warnings.append, lambda: self.now_ns
        )

    def _spend(self, function: str) -> None:
        self.now_ns += self.cost_ns.get(function, 0)

    def sample(self) -> DeviceSample:
        (sample,) = self.telemetry.sample()
        return sample


def test_every_metric_is_told_in_base_units() -> None:
    sample = Bench().sample()
    assert sample == DeviceSample(
        device=UUID,
        util_pct=87.0,
        memory_util_pct=41.0,
        memory_used_bytes=20_000 << 20,
        memory_total_bytes=143_771 << 20,
        power_w=512.3,
        power_limit_w=700.0,
        temperature_c=54.0,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=3201.0,
        throttle_reasons=4,
    )


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetUtilizationRates", {"util_pct", "memory_util_pct"}),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}),
        ("nvmlDeviceGetTemperature", {"temperature_c"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}),
        ("nvmlDeviceGetCurrentClocksEventReasons", {"throttle_reasons"}),
    ],
)
@pytest.mark.parametrize("error", ["NotSupported", "NoPermission"])
def test_an_unsupported_metric_is_missing_alone_and_not_asked_again(
    function: str, fields: set[str], error: str
) -> None:
    bench = Bench()
    bench.library.fail(function, error)
    sample = bench.sample()
    assert {name for name, value in sample._asdict().items() if value is None} == fields
    bench.library.calls.clear()
    bench.sample()
    assert function not in bench.library.calls
    assert bench.warnings == []


@pytest.mark.parametrize("error", ["Timeout", "InUse", "Unknown"])
def test_a_passing_error_leaves_out_one_value_once(error: str) -> None:
    bench = Bench()
    bench.library.fail("nvmlDeviceGetPowerUsage", error)
    assert bench.sample().power_w is None
    bench.library.heal("nvmlDeviceGetPowerUsage")
    assert bench.sample().power_w == 512.3


@pytest.mark.parametrize("error", ["GpuIsLost", "Uninitialized", "ResetRequired"])
def test_a_lost_gpu_ends_its_samples_with_one_warning(error: str) -> None:
    bench = Bench()
    bench.library.fail("nvmlDeviceGetPowerUsage", error)
    assert list(bench.telemetry.sample()) == []
    assert list(bench.telemetry.sample()) == []
    assert len(bench.warnings) == 1
    assert UUID in bench.warnings[0]


def test_a_slow_metric_is_asked_every_thirty_seconds() -> None:
    bench = Bench()
    bench.cost_ns["nvmlDeviceGetUtilizationRates"] = 250_000_000
    assert bench.sample().util_pct == 87.0
    bench.now_ns += 10 * 10**9
    assert bench.sample().util_pct is None
    assert bench.sample().power_w == 512.3
    bench.now_ns += 21 * 10**9
    assert bench.sample().util_pct == 87.0


def test_an_old_driver_answers_through_the_older_functions() -> None:
    bench = Bench()
    bench.library.fail("nvmlDeviceGetMemoryInfo_v2", "FunctionNotFound")
    bench.library.fail("nvmlDeviceGetCurrentClocksEventReasons", "FunctionNotFound")
    sample = bench.sample()
    assert sample.memory_used_bytes == (20_000 + 610) << 20
    assert sample.throttle_reasons == 4


def test_a_device_that_nvml_does_not_show_is_said_and_left_out() -> None:
    warnings: list[str] = []
    telemetry = NvmlTelemetry(Nvml(FakeNvml()), ["GPU-ffff", UUID], warnings.append)
    assert [sample.device for sample in telemetry.sample()] == [UUID]
    assert len(warnings) == 1
    assert "GPU-ffff" in warnings[0]


def test_a_mig_slice_is_found_under_its_own_prefix() -> None:
    nvml = Nvml(FakeNvml([FakeGpu(uuid="MIG-abc")]))
    assert nvml.handle("GPU-abc") is not None
    assert nvml.handle("GPU-abd") is None


def test_closing_twice_lets_go_once() -> None:
    library = FakeNvml()
    telemetry = NvmlTelemetry(Nvml(library), [UUID], lambda text: None)
    telemetry.close()
    telemetry.close()
    assert library.users == 0
    assert list(telemetry.sample()) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("LibraryNotFound", "Install the NVIDIA driver"),
        ("DriverNotLoaded", "Load the driver"),
        ("LibRmVersionMismatch", "Reboot"),
        ("Unknown", "nvidia-smi"),
    ],
)
def test_why_nvml_is_missing_is_told_with_what_to_do(error: str, words: str) -> None:
    library = FakeNvml()
    library.fail("nvmlInit", error)
    with pytest.raises(NvmlUnavailableError, match=words):
        Nvml(library)


def test_versions_and_limits_are_told_or_missing() -> None:
    library = FakeNvml(cuda=12080)
    with Nvml(library) as nvml:
        assert nvml.driver_version() == "580.95.05"
        assert nvml.cuda_version() == (12, 8)
        assert nvml.power_limit_w(UUID) == 700.0
        assert nvml.power_limit_w("GPU-nobody") is None
        assert nvml.device_count() == 1
        for function in (
            "nvmlSystemGetDriverVersion",
            "nvmlSystemGetCudaDriverVersion_v2",
            "nvmlDeviceGetEnforcedPowerLimit",
        ):
            library.fail(function, "NotSupported")
        assert nvml.driver_version() is None
        assert nvml.cuda_version() is None
        assert nvml.power_limit_w(UUID) is None


def fake_functions() -> list[str]:
    return [name for name in vars(FakeNvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", fake_functions())
def test_the_fake_has_the_real_functions_and_their_parameters(name: str) -> None:
    real = inspect.signature(getattr(pynvml, name))
    fake = inspect.signature(getattr(FakeNvml(), name))
    assert list(fake.parameters) == list(real.parameters)


def test_the_fake_raises_the_real_errors() -> None:
    library = FakeNvml()
    library.fail("nvmlDeviceGetPowerUsage", "NotSupported")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        library.nvmlDeviceGetPowerUsage(FakeGpu())
    with pytest.raises(AttributeError):
        _ = library.nvmlDeviceReset
