import json

import pytest
import torch

from harness.device.cpu.device import CpuDevice
from harness.device.cuda.cudnn import read_cudnn_version
from harness.device.doctor.checks import check_cuda, check_cudnn, check_sqlite, tensor_cores
from harness.device.doctor.examine import run_checks
from harness.device.doctor.report import Check, DeviceReport, DoctorReport, Status, from_json, to_json
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.errors import StepscopeError
from harness.records.run import DeviceKind
from harness.watch.run_row import first_row


def cuda(
    built_for: str | None = "13.0",
    visible_gpus: int = 1,
    reason: str = "",
    driver_cuda: tuple[int, int] | None = (13, 0),
    nvml_gpus: int = 1,
    visible_devices: str | None = None,
) -> Check:
    driver = None if driver_cuda is None else "580.95.05"
    return check_cuda(
        "2.13.0", built_for, visible_gpus, reason, driver, driver_cuda, nvml_gpus, visible_devices
    )


def another_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> int | None:
        raise RuntimeError("cuDNN version incompatibility: found (9, 0, 0). ")

    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", version)


def test_a_driver_of_the_same_major_version_fits() -> None:
    check = cuda(built_for="13.2")
    assert check.status is Status.OK
    assert (
        check.value
        == "torch is built for CUDA 13.2; driver 580.95.05 for CUDA up to 13.0; they are compatible"
    )
    assert check.advice == ""


def test_a_newer_driver_fits_an_older_build() -> None:
    assert cuda(built_for="12.6").status is Status.OK


def test_an_older_driver_is_a_problem_with_two_ways_out() -> None:
    check = cuda(driver_cuda=(12, 8), visible_gpus=0)
    assert check.status is Status.PROBLEM
    assert "update it to one for CUDA 13, or install a torch built for CUDA 12" in check.advice


def test_a_gpu_that_a_cpu_build_cannot_use_is_a_problem() -> None:
    check = cuda(built_for=None, visible_gpus=0)
    assert check.status is Status.PROBLEM
    assert "install a CUDA build of torch" in check.advice


def test_no_gpu_and_no_cuda_is_nothing_wrong() -> None:
    check = cuda(built_for=None, visible_gpus=0, driver_cuda=None, nvml_gpus=0)
    assert check.status is Status.UNAVAILABLE
    assert check.advice == ""


def test_a_cuda_build_without_gpu_tells_torchs_reason() -> None:
    check = cuda(visible_gpus=0, reason="no driver found", driver_cuda=None, nvml_gpus=0)
    assert check.status is Status.UNAVAILABLE
    assert check.value.endswith("no GPU: no driver found")


def test_a_gpu_hidden_by_the_environment_is_only_a_warning() -> None:
    check = cuda(visible_gpus=0, reason="torch detects no CUDA device", visible_devices="")
    assert check.status is Status.WARNING
    assert "CUDA_VISIBLE_DEVICES is ''" in check.advice


def test_a_gpu_that_torch_cannot_reach_is_a_problem() -> None:
    check = cuda(visible_gpus=0, reason="torch detects no CUDA device")
    assert check.status is Status.PROBLEM
    assert "nvidia-smi" in check.advice


def test_a_gpu_without_nvml_is_fine() -> None:
    assert cuda(driver_cuda=None, nvml_gpus=0).status is Status.OK


@pytest.mark.parametrize("version", [(3, 51, 3), (3, 50, 7), (3, 44, 6), (3, 52, 0)])
def test_a_repaired_sqlite_needs_no_word(version: tuple[int, int, int]) -> None:
    check = check_sqlite(version)
    assert (check.status, check.value) == (Status.OK, ".".join(map(str, version)))


@pytest.mark.parametrize("version", [(3, 51, 2), (3, 50, 6), (3, 45, 0), (3, 44, 5), (3, 40, 1)])
def test_the_wal_fault_is_named_and_why_it_does_not_matter(version: tuple[int, int, int]) -> None:
    check = check_sqlite(version)
    assert check.status is Status.OK
    assert "writes each file from one connection, so it is not affected" in check.value


def test_an_sqlite_without_strict_tables_is_a_problem() -> None:
    check = check_sqlite((3, 36, 0))
    assert check.status is Status.PROBLEM
    assert check.advice


@pytest.mark.parametrize(
    ("capability", "name", "cores"),
    [
        (None, "AMD EPYC", None),
        ((6, 1), "NVIDIA GeForce GTX 1080", None),
        ((7, 0), "Tesla V100", "1st generation (Volta)"),
        ((7, 5), "NVIDIA GeForce GTX 1660", None),
        ((7, 5), "Tesla T4", "2nd generation (Turing)"),
        ((8, 6), "NVIDIA GeForce RTX 3090", "3rd generation (Ampere)"),
        ((8, 9), "NVIDIA L4", "4th generation (Ada)"),
        ((9, 0), "NVIDIA H200", "4th generation (Hopper)"),
        ((12, 0), "NVIDIA GeForce RTX 5090", "5th generation (Blackwell)"),
    ],
)
def test_tensor_cores_go_by_capability(
    capability: tuple[int, int] | None, name: str, cores: str | None
) -> None:
    assert tensor_cores(capability, name) == cores


@pytest.mark.parametrize(("number", "text"), [(91002, "9.10.2"), (8907, "8.9.7"), (90100, "9.1.0")])
def test_cudnns_number_is_read(number: int, text: str) -> None:
    assert check_cudnn(number) == Check("cuDNN", Status.OK, text)


def test_another_cudnn_than_torchs_is_a_problem_in_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    another_cudnn(monkeypatch)
    check = check_cudnn(read_cudnn_version())
    assert (check.status, check.value) == (Status.PROBLEM, "cuDNN version incompatibility: found (9, 0, 0).")
    assert "LD_LIBRARY_PATH" in check.advice


def test_a_torch_without_cudnn_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert check_cudnn(read_cudnn_version()).status is Status.UNAVAILABLE


def test_a_run_is_recorded_with_another_cudnn_than_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    another_cudnn(monkeypatch)
    row = first_row("id", "name", "{}", FakeDevice(FAKE_FACTS))
    assert json.loads(row.versions)["cudnn"] is None


def test_a_run_on_the_cpu_loads_no_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    versions_read: list[str] = []
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: versions_read.append("cuDNN"))
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    row = first_row("id", "name", "{}", CpuDevice(None))
    assert json.loads(row.versions)["cudnn"] is None
    assert versions_read == []


def test_the_worst_check_speaks_for_the_report() -> None:
    checks = tuple(Check("x", status, "") for status in (Status.OK, Status.UNAVAILABLE))
    assert DoctorReport(checks, ()).worst is Status.OK
    assert DoctorReport((*checks, Check("x", Status.WARNING, "")), ()).worst is Status.WARNING
    problem = Check("x", Status.PROBLEM, "")
    assert DoctorReport((problem, Check("x", Status.WARNING, "")), ()).worst is Status.PROBLEM


def test_a_report_survives_the_trip_through_json() -> None:
    report = DoctorReport(
        (Check("SQLite", Status.OK, "3.53.0"), Check("NVML", Status.WARNING, "…", "Install it.")),
        (DeviceReport(FAKE_FACTS, "4th generation (Hopper)", ("No pinned memory.",)),),
    )
    assert from_json(to_json(report)) == report


def test_a_report_of_a_later_version_is_read_without_what_is_unknown() -> None:
    report = DoctorReport((Check("SQLite", Status.OK, "3.53.0"),), (DeviceReport(FAKE_FACTS, None, ()),))
    values = json.loads(to_json(report))
    for part in (values, values["checks"][0], values["devices"][0], values["devices"][0]["facts"]):
        part["later"] = 1
    assert from_json(json.dumps(values)) == report


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"checks": [{}], "devices": []}', "null", "[" * 60_000, '{"checks": [7]}']
)
def test_what_is_no_report_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(StepscopeError, match="cannot be read"):
        from_json(text)


def test_this_machine_can_be_examined() -> None:
    report = run_checks()
    assert from_json(to_json(report)) == report
    assert report.devices[-1].facts.kind is DeviceKind.CPU
    assert len({check.name for check in report.checks}) == len(report.checks)
    for check in report.checks:
        assert check.value
        assert check.advice == "" or check.advice.endswith((".", ")."))
    for device in report.devices:
        assert all(limit.endswith(".") for limit in device.limits)
