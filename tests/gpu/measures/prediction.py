"""Predictions of memory against the allocator's own peak, over configurations drawn at random."""

import gc
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.predict.answer import Answer, Prediction, Target
from harness.predict.asking import Predictor
from harness.settings.resolve import resolve
from harness.train.workload import Workload
from tests.gpu.configurations import draw, label
from tests.gpu.context import Context

COUNT = 60
_QUICK_COUNT = 2
_STEPS = 4
_MOST_SHARE = 0.9
"""Of the card: what is predicted to take more is not run."""


class Peaks(NamedTuple):
    """The highest of the steps from the second on, in bytes above the level before the model;
    `reserved_bytes` is None where there is no caching allocator."""

    allocated_bytes: int
    reserved_bytes: int | None


def measure(context: Context) -> None:
    """Predict and run each configuration. Predictions are made by a process of their own, in the meantime."""
    device = open_device(context.device)
    target = Target.of(device.facts)
    name = device.facts.torch_name
    if context.is_quick:
        drawn = draw(context.seed, _QUICK_COUNT, name, ("laptop",), device.facts.amp_modes)
    else:
        drawn = draw(context.seed, COUNT, name, amp_modes=device.facts.amp_modes)
    items = {label(values): values for values in drawn}
    waiting = [item for item in items if item not in context.done]
    with Predictor(None) as predictor, ThreadPoolExecutor(1) as pool:
        answers: dict[str, Future[Answer]] = {
            item: pool.submit(predictor.wait, resolve(items[item]), target) for item in waiting
        }
        try:
            for item in context.pending(items):
                context.put(item, compare(device, items[item], answers[item].result()))
        finally:
            pool.shutdown(cancel_futures=True)


def compare(device: Device, values: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The prediction beside the measured peaks; `left_out`: why there is nothing to compare."""
    if not isinstance(answer, Prediction):
        return {"left_out": f"no prediction: {answer.reason}"}
    memory_bytes = device.facts.memory_bytes
    if memory_bytes is not None and answer.needed_bytes > _MOST_SHARE * memory_bytes:
        return {"left_out": "predicted to need over 90 % of the card"}
    began_s = time.monotonic()
    peaks = measured(device, values)
    return {
        "predicted_bytes": answer.peak_allocated_bytes,
        "measured_bytes": peaks.allocated_bytes,
        "predicted_reserved_bytes": answer.peak_reserved_bytes,
        "measured_reserved_bytes": peaks.reserved_bytes,
        "seconds": round(time.monotonic() - began_s, 1),
    }


def measured(device: Device, values: Mapping[str, Any]) -> Peaks:
    """Train some steps; on a GPU the peaks are `torch.cuda.max_memory_allocated` and `…_reserved`."""
    settings = resolve(values)
    source = open_source(settings)
    gc.collect()
    if device.facts.torch_name.startswith("cuda"):
        torch._C._cuda_clearCublasWorkspaces()
    device.empty_cache()
    device.begin_memory()
    level = device.read_memory()
    with device.torch_device:
        network = build_model(settings, source.shape)
    workload = Workload(settings, device, network, source)
    try:
        for step in range(_STEPS):
            if step == 1:
                device.synchronize()
                device.read_memory()
            take_plain_step(workload)
            device.note_peak()
        device.synchronize()
        last = device.read_memory()
    finally:
        workload.close()
    assert last.peak_allocated_bytes is not None
    assert level.allocated_bytes is not None
    reserved_bytes = None
    if last.peak_reserved_bytes is not None and level.reserved_bytes is not None:
        reserved_bytes = last.peak_reserved_bytes - level.reserved_bytes
    return Peaks(last.peak_allocated_bytes - level.allocated_bytes, reserved_bytes)


def take_plain_step(workload: Workload) -> None:
    """One step, unobserved."""
    for _ in range(workload.micro_batches):
        inputs, targets = workload.to_device(workload.next_batch())
        loss = workload.forward(inputs, targets)
        workload.backward(loss)
        del inputs, targets, loss
    workload.update()
