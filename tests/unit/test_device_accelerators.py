"""Intel's, Apple's and AMD's GPUs: the fakes have torch's own interface, and what each device promises."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.cli.machine import _device_line
from harness.device.cuda.facts import cuda_facts, probe_cuda
from harness.device.doctor.report import DeviceReport
from harness.device.mps.facts import list_mps, mps_facts, mps_limits
from harness.device.protocol import DeviceClock
from harness.device.testing.accelerators import (
    FAKE_MPS_FACTS,
    FAKE_XPU_FACTS,
    FakeMps,
    FakeMpsDevice,
    FakeXpu,
    FakeXpuDevice,
)
from harness.device.testing.device import FAKE_FACTS, FakeAllocator, FakeDevice, FakeQueue
from harness.device.torch_telemetry import open_telemetry
from harness.device.xpu.facts import list_xpu, xpu_facts, xpu_limits
from harness.errors import DeviceError, SettingError
from harness.predict.answer import Target
from harness.predict.question import Question
from harness.records.run import AmpMode, DeviceFacts, DeviceKind, Phase
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS, unavailable_reason
from tests.train_factories import Clock

MIB = 1 << 20
S = 10**9


def public(module: Any) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_") and name != "Event"]


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(("fake", "real"), [(FakeXpu, torch.xpu), (FakeMps, torch.mps)], ids=["xpu", "mps"])
def test_a_fake_module_has_the_functions_of_torchs_with_their_parameters(fake: Any, real: Any) -> None:
    for name in public(fake):
        if name.endswith("_per_process_memory_fraction") and not hasattr(real, name):
            continue  # XPU has them since torch 2.10
        assert parameters(getattr(fake, name)) == parameters(getattr(real, name)), name


@pytest.mark.parametrize("device", [FakeXpuDevice(), FakeMpsDevice()], ids=["xpu", "mps"])
def test_a_fake_event_has_the_methods_of_torchs_with_their_parameters(device: Any) -> None:
    event = device._library.Event(enable_timing=True)
    real = torch.xpu.Event if device.facts.kind is DeviceKind.XPU else torch.mps.Event
    for name in ("record", "query", "elapsed_time"):
        assert parameters(getattr(event, name)) == parameters(getattr(real, name)), name


def test_this_machine_has_none_of_them() -> None:
    assert list_xpu() == [] or torch.xpu.is_available()
    assert list_mps() == [] or torch.mps.is_available()


def test_an_intel_gpu_is_described_by_its_properties() -> None:
    facts = xpu_facts(FakeXpu(FakeAllocator(12 << 30), FakeQueue()), 0)
    assert (facts.kind, facts.torch_name, facts.name) == (DeviceKind.XPU, "xpu:0", "Intel fake GPU")
    assert (facts.memory_bytes, facts.multiprocessors, facts.capability) == (12 << 30, 160, None)
    assert facts.amp_modes == (AmpMode.OFF, AmpMode.BF16, AmpMode.FP16)
    assert facts.can_cap


def test_an_intel_gpu_without_double_precision_has_no_fp16() -> None:
    library = FakeXpu(FakeAllocator(12 << 30), FakeQueue())
    old = library.get_device_properties()
    old.has_fp64 = False
    facts = xpu_facts(SimpleNamespace(get_device_properties=lambda ordinal: old), 0)
    assert AmpMode.FP16 not in facts.amp_modes
    assert not facts.can_cap
    assert any("double precision" in limit for limit in xpu_limits(facts))
    assert any("set_per_process_memory_fraction" in limit for limit in xpu_limits(facts))


def test_an_apple_gpu_is_described_as_far_as_this_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 24 << 30)
    new = SimpleNamespace(
        get_name=lambda: "Apple M4 Max",
        get_core_count=lambda: 40,
        is_macos_or_newer=lambda major, minor: True,
    )
    old = SimpleNamespace(is_macos_or_newer=lambda major, minor: False)
    facts = mps_facts(new)  # type: ignore[arg-type]  # stands in for the module
    assert (facts.name, facts.multiprocessors, facts.torch_name) == ("Apple M4 Max", 40, "mps:0")
    assert AmpMode.BF16 in facts.amp_modes
    older = mps_facts(old)  # type: ignore[arg-type]  # stands in for the module
    assert (older.name, older.multiprocessors) == ("Apple GPU", None)
    assert older.amp_modes == (AmpMode.OFF,)
    assert any("macOS 14" in limit for limit in mps_limits(older))
    assert any("GradScaler" in limit for limit in mps_limits(older))


def test_a_cap_on_intels_gpu_limits_what_is_reserved() -> None:
    device = FakeXpuDevice()
    device.cap_memory(512 * MIB)
    assert device.allocator.limit_bytes == 512 * MIB
    device.lift_cap_for_recovery()
    assert device.allocator.limit_bytes == device.allocator.total_bytes


def test_a_torch_without_a_cap_for_intels_gpus_says_so() -> None:
    device = FakeXpuDevice(FAKE_XPU_FACTS._replace(can_cap=False))
    device.cap_memory(None)
    with pytest.raises(DeviceError, match="no memory cap for Intel GPUs"):
        device.cap_memory(512 * MIB)


def test_a_driver_that_does_not_tell_what_is_free_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> tuple[int, int]:
        raise RuntimeError("The device doesn't support querying the available free memory.")

    monkeypatch.setattr(FakeXpu, "mem_get_info", refuse)
    assert FakeXpuDevice().read_memory_info() == (None, FAKE_XPU_FACTS.memory_bytes)


def test_a_cap_on_apples_gpu_may_exceed_what_metal_recommends_and_is_lifted_to_torchs_own_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", raising=False)
    device = FakeMpsDevice()
    total = device.allocator.total_bytes
    device.cap_memory(total + 512 * MIB)
    assert device.allocator.limit_bytes == total + 512 * MIB
    device.cap_memory(None)
    assert device.allocator.limit_bytes == int(1.7 * total)
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.5")
    device.lift_cap_for_recovery()
    assert device.allocator.limit_bytes == total // 2
    device.allocator.allocate(200 * MIB)
    with pytest.raises(SettingError, match="smallest cap that works now"):
        device.cap_memory(100 * MIB)


def a_step(clock: DeviceClock) -> Any:
    clock.begin()
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        clock.lap(phase)
    return clock.end()


def test_apples_steps_are_timed_twice_a_second_and_the_rest_never_waits() -> None:
    now, queue = Clock(), FakeQueue(mark_ns=1_000_000)
    device = FakeMpsDevice(queue=queue, clock_ns=now)
    clock = device.clock()
    assert clock is not None
    tickets = []
    for _ in range(30):
        tickets.append(a_step(clock))
        now.now_ns += S // 10
    device.synchronize()
    times = []
    for ticket in tickets:
        assert ticket is not None
        assert ticket.ready()
        times.append(ticket.resolve())
    assert [number for number, result in enumerate(times) if result is not None] == [0, 1, 10, 11, 20, 21]
    assert times[11].gap_ns == 1_000_000
    assert times[10].gap_ns is None
    assert times[11].step_ns == 3_000_000
    assert queue.waits == 3 * (4 + 5)


def test_events_that_apples_gpu_reached_at_once_are_no_time_apart() -> None:
    clock = FakeMpsDevice(queue=FakeQueue(mark_ns=0)).clock()
    assert clock is not None
    times = a_step(clock).resolve()
    assert times.step_ns == 0


def test_a_supply_of_events_that_is_empty_leaves_a_step_without_a_ticket() -> None:
    now = Clock()
    clock = FakeMpsDevice(queue=FakeQueue(), clock_ns=now).clock()
    assert clock is not None
    tickets = [a_step(clock) for _ in range(2 + 256 + 1)]
    assert tickets[-1] is None
    tickets[5].resolve()
    tickets[5].resolve()
    assert a_step(clock) is not None
    assert a_step(clock) is None


def test_a_torch_whose_xpu_events_cannot_be_timed_gives_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeXpuDevice()

    def refuse(*_: object) -> float:
        raise NotImplementedError("elapsed_time of XPUEvent requires PyTorch to be built with …")

    monkeypatch.setattr("harness.device.testing.accelerators.FakeXpuEvent.elapsed_time", refuse)
    assert device.clock() is None


class TestAmd:
    """A torch built for ROCm."""

    @pytest.fixture(autouse=True)
    def rocm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        properties = SimpleNamespace(
            name="Instinct MI300X",
            major=9,
            minor=4,
            total_memory=192 << 30,
            multi_processor_count=304,
            uuid="12345678-0000-0000-0000-000000000000",
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: properties)

    def test_its_gpu_is_no_nvidia_gpu(self) -> None:
        assert probe_cuda().devices == 1
        facts = cuda_facts(0)
        assert (facts.name, facts.capability, facts.uuid) == ("AMD Instinct MI300X", None, None)
        assert facts.amp_modes == (AmpMode.OFF, AmpMode.BF16, AmpMode.FP16)

    def test_nvml_is_never_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("NVML was asked about an AMD GPU")

        for place in ("harness.device.find.Nvml", "harness.device.doctor.examine.Nvml"):
            monkeypatch.setattr(place, refuse)
        from harness.device.doctor.examine import _check_nvidia, _limits
        from harness.device.find import choose, list_devices

        gpus = list_devices()
        assert gpus[0].name == "AMD Instinct MI300X"
        assert choose("auto", gpus[:1]) == gpus[0]
        assert all(check.value for check in _check_nvidia())
        assert any("NVML, an NVIDIA library" in limit for limit in _limits(gpus[0]))

    def test_amd_smi_tells_how_it_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        message = {
            "utilization": 87,
            "memory_usage": 40,
            "temperature": 65,
            "power_draw": 540,
            "clock_rate": 0,
        }
        for name, value in message.items():
            monkeypatch.setattr(torch.cuda, name, lambda ordinal, value=value: value)
        missing: list[str] = []
        device = FakeDevice(cuda_facts(0)._replace(memory_bytes=8 << 30))
        telemetry = open_telemetry(device, missing.append, has=lambda name: name)
        assert telemetry is not None
        (sample,) = telemetry.sample()
        assert (sample.device, sample.util_pct, sample.power_w, sample.temperature_c) == ("cuda", 87, 540, 65)
        assert sample.sm_clock_mhz is None
        assert sample.memory_total_bytes == 8 << 30
        assert missing == []

    def test_a_metric_that_fails_drops_out_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(ordinal: int) -> int:
            raise RuntimeError("amdsmi driver can't be loaded")

        for name in ("utilization", "memory_usage", "power_draw", "clock_rate"):
            monkeypatch.setattr(torch.cuda, name, fail)
        monkeypatch.setattr(torch.cuda, "temperature", lambda ordinal: 65)
        missing: list[str] = []
        telemetry = open_telemetry(FakeDevice(cuda_facts(0)), missing.append, has=lambda name: name)
        assert telemetry is not None
        for _ in range(2):
            (sample,) = telemetry.sample()
        assert (sample.temperature_c, sample.util_pct) == (65, None)
        assert len(missing) == 4

    def test_without_amd_smi_its_memory_is_told_and_the_reason_for_the_rest(self) -> None:
        missing: list[str] = []
        telemetry = open_telemetry(FakeDevice(cuda_facts(0)), missing.append, has=lambda name: None)
        assert telemetry is not None
        (sample,) = telemetry.sample()
        assert sample.util_pct is None
        assert sample.memory_total_bytes is not None
        assert "amdsmi" in missing[0]


def test_the_doctor_claims_nothing_of_tensor_cores_that_cannot_be_told() -> None:
    for facts, message in ((FAKE_XPU_FACTS, "n/a"), (FAKE_FACTS._replace(capability=(6, 1)), "none")):
        assert _device_line(DeviceReport(facts, None, ()))[-1] == message


@pytest.mark.parametrize("facts", [FAKE_XPU_FACTS, FAKE_MPS_FACTS], ids=["xpu", "mps"])
def test_memory_is_not_predicted_where_it_was_not_measured(facts: DeviceFacts) -> None:
    with pytest.raises(SettingError, match="only for NVIDIA GPUs and the CPU"):
        Question.of(resolve({"model": "mlp"}), Target.of(facts))


@pytest.mark.parametrize(
    ("facts", "able", "unable"),
    [
        (FAKE_XPU_FACTS._replace(can_pin=True), ("pin_memory", "offload_saved_tensors"), ("nvtx",)),
        (FAKE_MPS_FACTS, ("memory_cap_gib",), ("non_blocking", "offload_saved_tensors", "cudnn_benchmark")),
    ],
    ids=["xpu", "mps"],
)
def test_settings_that_can_do_nothing_there_say_what_they_need(
    facts: DeviceFacts, able: tuple[str, ...], unable: tuple[str, ...]
) -> None:
    assert [unavailable_reason(SPECS[name], facts) for name in able] == [None] * len(able)
    for name in unable:
        reason = unavailable_reason(SPECS[name], facts)
        assert reason is not None
        assert "needs a CUDA GPU" in reason


def test_nvidias_gpus_and_the_cpu_have_their_own_telemetry() -> None:
    assert open_telemetry(FakeDevice(FAKE_FACTS), lambda text: None) is None
    assert open_telemetry(FakeMpsDevice(FAKE_MPS_FACTS), lambda text: None) is None
    telemetry = open_telemetry(FakeXpuDevice(), lambda text: None, has=lambda name: None)
    assert telemetry is not None
    assert telemetry.sample()[0].device == "xpu"


def test_an_intel_gpu_that_was_never_capped_keeps_its_own_limit() -> None:
    device = FakeXpuDevice()
    device.allocator.limit_bytes = 4 << 30
    device.cap_memory(None)
    device.lift_cap_for_recovery()
    assert device.allocator.limit_bytes == 4 << 30


def test_lifting_a_cap_of_an_intel_gpu_restores_its_own_limit() -> None:
    device = FakeXpuDevice()
    device.allocator.limit_bytes = 4 << 30
    device.cap_memory(512 * MIB)
    assert device.limit_bytes() == 512 * MIB
    device.lift_cap_for_recovery()
    assert device.allocator.limit_bytes == device.limit_bytes() == 4 << 30


def test_another_intel_gpu_of_the_process_is_read() -> None:
    device = FakeXpuDevice()
    device.allocator.allocate(3 * MIB)
    other = device.sibling(1)
    assert other.facts.torch_name == "xpu:1"
    assert other.read_memory().allocated_bytes == 3 * MIB


def test_an_apple_gpu_that_was_never_capped_keeps_its_own_limit() -> None:
    device = FakeMpsDevice()
    device.allocator.limit_bytes = 4 << 30
    device.cap_memory(None)
    device.lift_cap_for_recovery()
    assert device.allocator.limit_bytes == 4 << 30
