import pytest
import torch

from harness.device.cpu.device import CpuDevice
from harness.device.find import choose, list_devices, open_device
from harness.device.testing.accelerators import FAKE_MPS_FACTS, FAKE_XPU_FACTS
from harness.device.testing.device import FAKE_FACTS
from harness.errors import AbsentDeviceError, SettingError
from harness.records.run import DeviceFacts, DeviceKind


def gpu(ordinal: int, uuid: str, name: str = "NVIDIA H200") -> DeviceFacts:
    return FAKE_FACTS._replace(ordinal=ordinal, uuid=uuid, name=name)


TWO = [gpu(0, "GPU-1f2e0000-1111"), gpu(1, "GPU-1f2e9999-2222", "NVIDIA L4")]


@pytest.mark.parametrize(
    ("selector", "ordinal"),
    [
        ("auto", 0),
        ("cuda", 0),
        ("cuda:1", 1),
        (" CUDA:1 ", 1),
        ("GPU-1f2e9", 1),
        ("gpu-1F2E0000-1111", 0),
    ],
)
def test_a_selector_finds_its_gpu(selector: str, ordinal: int) -> None:
    facts = choose(selector, TWO)
    assert facts is not None
    assert facts.ordinal == ordinal


def test_auto_prefers_cuda_then_xpu_then_mps_and_each_is_found_by_its_name() -> None:
    xpu, mps = FAKE_XPU_FACTS, FAKE_MPS_FACTS
    assert choose("auto", [*TWO, xpu, mps]) == TWO[0]
    assert choose("auto", [xpu, mps]) == xpu
    assert choose("xpu:0", [*TWO, xpu, mps]) == choose("xpu", [xpu]) == xpu
    assert choose("MPS", [*TWO, xpu, mps]) == mps
    with pytest.raises(AbsentDeviceError, match=r"mps does not exist: torch \S+ detects no mps device"):
        choose("mps", [])
    with pytest.raises(AbsentDeviceError, match=r"cuda does not exist: .*has 1 GPU.*xpu:0 Intel fake GPU"):
        choose("cuda", [xpu])


@pytest.mark.parametrize("selector", ["cpu", "CPU", "auto"])
def test_without_gpu_auto_is_the_cpu(selector: str) -> None:
    assert choose(selector, []) is None


def test_the_cpu_can_be_chosen_beside_gpus() -> None:
    assert choose("cpu", TWO) is None


def test_a_mig_slice_is_chosen_by_its_uuid() -> None:
    slice_ = gpu(0, "MIG-aaaa0000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert choose("MIG-aaaa", [slice_]) == slice_


def test_a_gpu_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(AbsentDeviceError, match=r"cuda:3 does not exist: .*has 2 GPUs.*cuda:1 NVIDIA L4;"):
        choose("cuda:3", TWO)


def test_cuda_visible_devices_is_mentioned_when_it_may_hide_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(AbsentDeviceError, match=r"has 1 GPU \(CUDA_VISIBLE_DEVICES is '0'\): cuda:0"):
        choose("cuda:1", TWO[:1])


def test_without_any_gpu_the_reason_is_told() -> None:
    with pytest.raises(AbsentDeviceError, match=r"cuda:0 does not exist: .*choose cpu, or see `stepscope"):
        choose("cuda:0", [])


def test_an_ambiguous_uuid_is_refused_with_all_that_fit() -> None:
    with pytest.raises(SettingError, match=r"matches several GPUs: GPU-1f2e0000-1111, GPU-1f2e9999-2222"):
        choose("GPU-1f2e", TWO)


@pytest.mark.parametrize("selector", ["", "tpu", "cuda:", "cuda:-1", "cuda:x", "0", "GPU", "gpu:0"])
def test_a_word_that_means_nothing_is_refused_with_what_is_allowed(selector: str) -> None:
    with pytest.raises(SettingError, match="allowed: auto, cpu, cuda:N") as refusal:
        choose(selector, TWO)
    assert refusal.value.setting == "device"


def test_the_cpu_opens_and_comes_last_in_the_list() -> None:
    device = open_device("cpu")
    assert isinstance(device, CpuDevice)
    assert device.torch_device == torch.device("cpu")
    assert list_devices()[-1].kind is DeviceKind.CPU
