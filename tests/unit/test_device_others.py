"""AMD, Apple and Intel GPUs are named by the doctor."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from harness.device.doctor.accelerators import amd_limits, check_others
from harness.device.doctor.report import Check, Status


def only() -> Check:
    (check,) = check_others()
    return check


def test_a_machine_without_them_is_not_told_about_them() -> None:
    assert check_others() == []


def test_an_amd_gpu_is_named_with_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct MI300X")
    check = only()
    assert check.status is Status.OK
    assert check.value == "AMD Instinct MI300X, torch is built for ROCm 6.4"
    assert check.advice == ""
    assert any("NVML" in limit for limit in amd_limits())


def test_a_rocm_build_without_a_gpu_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert only().status is Status.UNAVAILABLE


def test_an_apple_gpu_is_named_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 24 << 30)
    check = only()
    assert check.value == "available, recommended maximum 24.0 GiB"
    assert check.status is Status.OK


def test_an_intel_gpu_is_named_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel Arc B580")
    properties = SimpleNamespace(total_memory=12 << 30)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: properties)
    check = only()
    assert check.value == "Intel Arc B580, 12.0 GiB"
    assert check.status is Status.OK


def test_torch_offers_what_the_doctor_asks() -> None:
    assert not inspect.signature(torch.mps.recommended_max_memory).parameters
    for request in (torch.xpu.get_device_name, torch.xpu.get_device_properties, torch.cuda.get_device_name):
        assert list(inspect.signature(request).parameters) == ["device"]
