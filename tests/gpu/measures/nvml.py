"""The fields that NVML and GPM tell of this card, and why they do not tell the rest."""

import time

import torch

from harness.device.find import open_device
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import NvmlTelemetry
from tests.gpu.context import Context

_BUSY_S = 1.5


def measure(context: Context) -> None:
    """Read everything before and behind a second of matrix products: rates and GPM need two readings."""
    for item in context.pending(["fields"]):
        facts = open_device(context.device).facts
        try:
            nvml = Nvml()
        except NvmlUnavailableError as error:
            context.put(item, {"NVML": {"reason": str(error)}})
            continue
        telemetry = NvmlTelemetry(nvml, [facts.uuid or ""], print)
        try:
            context.put(item, read_fields(telemetry))
        finally:
            telemetry.close()


def read_fields(telemetry: NvmlTelemetry) -> dict[str, dict[str, object]]:
    """By the field's name: its value, or the reason why there is none."""
    telemetry.sample()
    telemetry.details()
    _work()
    missing = next(iter(telemetry.missing().values()), {})
    values: dict[str, object] = {}
    for sample in telemetry.sample():
        values |= sample._asdict()
    for details in telemetry.details():
        values |= details._asdict()
    return {
        name: {"value": str(value)} if value is not None else {"reason": missing.get(name, "no reason given")}
        for name, value in values.items()
    }


def _work() -> None:
    """Keep the tensor cores busy."""
    matrix = torch.full((8192, 8192), 1e-4, device="cuda", dtype=torch.bfloat16)
    end_s = time.monotonic() + _BUSY_S
    while time.monotonic() < end_s:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
