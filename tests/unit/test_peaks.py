"""Peaks are looked up by whole name and data type, and never guessed."""

import pytest

from harness.device.peaks import MathType, math_type, peak
from harness.records.run import DeviceFacts
from harness.settings import Settings
from harness.settings.spec import change
from tests.app.conftest import CPU, GPU


def a_gpu(name: str) -> DeviceFacts:
    return GPU._replace(name=name)


@pytest.mark.parametrize(
    ("name", "expected", "tera"),
    [
        ("NVIDIA H200", MathType.BF16, 989.5),
        ("NVIDIA H200 (simulated)", MathType.TF32, 494.5),
        ("NVIDIA H200 NVL", MathType.BF16, 835.5),
        ("NVIDIA H100 80GB HBM3", MathType.FP32, 67.0),
        ("NVIDIA H100 PCIe", MathType.FP16, 756.5),
        ("NVIDIA A100-SXM4-80GB", MathType.TF32, 156.0),
        ("NVIDIA A100 80GB PCIe", MathType.BF16, 312.0),
        ("NVIDIA L4", MathType.BF16, 121.0),
        ("NVIDIA L40S", MathType.BF16, 362.05),
        ("NVIDIA GeForce RTX 4090", MathType.FP16, 165.2),
        ("Tesla V100-SXM2-16GB", MathType.FP16, 125.0),
        ("Tesla T4", MathType.FP16, 65.0),
    ],
)
def test_a_known_device_has_its_makers_dense_figure(name: str, expected: MathType, tera: float) -> None:
    result = peak(a_gpu(name), expected)
    assert result is not None
    assert result.flops_per_s == pytest.approx(tera * 1e12)
    assert result.math_type is expected
    assert "NVIDIA" in result.source


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Some CPU", MathType.FP32),
        ("NVIDIA H300", MathType.BF16),
        ("NVIDIA H200 MIG 1g.18gb", MathType.BF16),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", MathType.BF16),
        ("NVIDIA L4000", MathType.BF16),
        ("Tesla T4", MathType.BF16),
        ("Tesla V100-SXM2-16GB", MathType.TF32),
        ("", MathType.FP32),
    ],
)
def test_what_is_not_listed_has_no_peak(name: str, expected: MathType) -> None:
    assert peak(a_gpu(name), expected) is None


@pytest.mark.parametrize(
    ("values", "capability", "expected"),
    [
        ({"amp": "bf16"}, (9, 0), MathType.BF16),
        ({"amp": "fp16"}, (7, 0), MathType.FP16),
        ({"matmul_precision": "highest"}, (9, 0), MathType.FP32),
        ({"matmul_precision": "high"}, (8, 0), MathType.TF32),
        ({"matmul_precision": "medium"}, (9, 0), MathType.TF32),
        ({"matmul_precision": "high"}, (7, 5), MathType.FP32),
    ],
)
def test_the_data_type_follows_from_settings_and_capability(
    values: dict[str, str], capability: tuple[int, int], expected: MathType
) -> None:
    settings = change(Settings(), values)
    assert math_type(settings, GPU._replace(capability=capability)) is expected


def test_the_cpu_multiplies_in_float32() -> None:
    assert math_type(change(Settings(), {"matmul_precision": "high"}), CPU) is MathType.FP32
