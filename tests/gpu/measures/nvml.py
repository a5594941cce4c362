"""The fields that NVML and GPM report of this card, why others are missing, and the time of each query."""

import statistics
import time
from contextlib import suppress

import torch

from harness.device.find import open_device
from harness.device.nvml.details import GpmMeter, detail_queries
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import SAMPLE_QUERIES, NvmlTelemetry
from tests.gpu.context import Context

_BUSY_S = 1.5
TIMES = "processor time of each query"
_REPEATS = 20


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
    for item in context.pending([TIMES]):
        facts = open_device(context.device).facts
        try:
            with Nvml() as nvml:
                context.put(item, query_times(nvml, facts.uuid or ""))
        except NvmlUnavailableError as error:
            context.put(item, {"NVML": {"reason": str(error)}})


def query_times(nvml: Nvml, uuid: str) -> dict[str, float]:
    """The median processor time of a query in ms, by its first field; without those that fail."""
    library, handle, gpm = nvml.library, nvml.handle(uuid), GpmMeter()
    times_ms = {}
    for query in (*SAMPLE_QUERIES, *detail_queries(gpm)):
        taken_ns = []
        with suppress(library.NVMLError):
            for _ in range(_REPEATS):
                began_ns = time.thread_time_ns()
                query.read(library, handle)
                taken_ns.append(time.thread_time_ns() - began_ns)
            times_ms[query.fields[0]] = statistics.median(taken_ns) / 1e6
    gpm.close()
    return times_ms


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
