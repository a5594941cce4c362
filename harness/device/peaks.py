"""Peak FLOP/s of devices by name and data type: the vendor's figures, dense, at boost clock.

Each figure has its source. Of figures "with sparsity" this is half: training multiplies dense matrices. A
device that is not listed has no peak, and neither has a MIG slice: nothing is guessed. Free of torch.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from harness.records.run import AmpMode, DeviceFacts
from harness.settings import Settings
from harness.settings.declaration import MatmulPrecision

_TERA = 1e12


class MathType(StrEnum):
    """The data type of matrix products; accumulation is in float32."""

    FP32 = "FP32"
    TF32 = "TF32"
    BF16 = "BF16"
    FP16 = "FP16"


class Peak(NamedTuple):
    """A device's peak in one data type, in FLOP/s, and its source."""

    flops_per_s: float
    math_type: MathType
    source: str


class _Sheet(NamedTuple):
    """The figures of one device, in TFLOP/s; None: it has no such units."""

    # A regular expression that matches the whole name.
    name: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float | None
    source: str


_SHEETS = (
    _Sheet(r"GB200", 80.0, 1250.0, 2500.0, 2500.0, "NVIDIA GB200 NVL72 specifications, per GPU"),
    _Sheet(r"B200", 75.0, 1100.0, 2250.0, 2250.0, "NVIDIA HGX B200 specifications, per GPU"),
    _Sheet(r"H200 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H200 Tensor Core GPU datasheet"),
    _Sheet(r"H200|GH200 (480GB|144G HBM3e)", 67.0, 494.5, 989.5, 989.5, "NVIDIA H200 and GH200 datasheets"),
    _Sheet(r"H100 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H100 Tensor Core GPU datasheet"),
    _Sheet(r"H100 PCIe", 51.0, 378.0, 756.5, 756.5, "NVIDIA H100 Tensor Core GPU datasheet (2023)"),
    _Sheet(r"H100( 80GB HBM3| SXM5)?", 67.0, 494.5, 989.5, 989.5, "NVIDIA H100 Tensor Core GPU datasheet"),
    _Sheet(
        r"A100[- ](SXM4-[48]0GB|PCIE-40GB|80GB PCIe)",
        19.5,
        156.0,
        312.0,
        312.0,
        "NVIDIA A100 Tensor Core GPU datasheet",
    ),
    _Sheet(r"A30", 10.3, 82.0, 165.0, 165.0, "NVIDIA A30 datasheet"),
    _Sheet(r"A40", 37.4, 74.8, 149.7, 149.7, "NVIDIA A40 datasheet"),
    _Sheet(r"A10", 31.2, 62.5, 125.0, 125.0, "NVIDIA A10 datasheet"),
    _Sheet(r"L4", 30.3, 60.0, 121.0, 121.0, "NVIDIA L4 datasheet"),
    _Sheet(r"L40", 90.5, 90.5, 181.05, 181.05, "NVIDIA L40 datasheet"),
    _Sheet(r"L40S", 91.6, 183.0, 362.05, 362.05, "NVIDIA L40S datasheet"),
    _Sheet(r"RTX A6000", 38.7, 77.4, 154.8, 154.8, "NVIDIA RTX A6000 datasheet"),
    _Sheet(r"RTX 6000 Ada Generation", 91.1, 182.1, 364.2, 364.2, "NVIDIA RTX 6000 Ada datasheet"),
    _Sheet(r"GeForce RTX 4090", 82.6, 82.6, 165.2, 165.2, "NVIDIA Ada GPU architecture whitepaper"),
    _Sheet(r"GeForce RTX 3090", 35.6, 35.6, 71.0, 71.0, "NVIDIA Ampere GA102 architecture whitepaper"),
    _Sheet(r"V100-PCIE(-(16|32)GB)?", 14.0, None, None, 112.0, "NVIDIA V100 datasheet, PCIe"),
    _Sheet(r"V100-SXM2(-(16|32)GB)?", 15.7, None, None, 125.0, "NVIDIA V100 datasheet, SXM2"),
    _Sheet(r"T4", 8.1, None, None, 65.0, "NVIDIA T4 datasheet"),
)
_SIMULATED = " (simulated)"
_AMP: Mapping[AmpMode, MathType] = {AmpMode.BF16: MathType.BF16, AmpMode.FP16: MathType.FP16}


def math_type(settings: Settings, facts: DeviceFacts) -> MathType:
    """Return the data type in which a run with `settings` multiplies matrices on this device.

    "high" and "medium" both allow TF32, which needs compute capability 8.0
    (`torch.set_float32_matmul_precision`).
    """
    if settings.amp in _AMP:
        return _AMP[settings.amp]
    has_tf32 = facts.capability is not None and facts.capability >= (8, 0)
    is_allowed = settings.matmul_precision is not MatmulPrecision.HIGHEST
    return MathType.TF32 if has_tf32 and is_allowed else MathType.FP32


def peak(facts: DeviceFacts, dtype: MathType) -> Peak | None:
    """Return the peak of this device in one data type; None if unknown."""
    name = facts.name.removesuffix(_SIMULATED)
    for vendor in ("NVIDIA ", "Tesla "):
        name = name.removeprefix(vendor)
    for sheet in _SHEETS:
        if re.fullmatch(sheet.name, name):
            value = {
                MathType.FP32: sheet.fp32,
                MathType.TF32: sheet.tf32,
                MathType.BF16: sheet.bf16,
                MathType.FP16: sheet.fp16,
            }[dtype]
            return None if value is None else Peak(value * _TERA, dtype, sheet.source)
    return None
