"""Predictions against what the caching allocator says after real steps on a GPU."""

import gc
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from harness.data.source import open_source
from harness.device.find import open_device
from harness.models.building import build_model
from harness.predict.asking import Predictor
from harness.prediction import Prediction, Target
from harness.selection import resolve
from harness.train.workload import Workload

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

_MODELS = ("mlp", "cnn", "resnet", "lstm", "gru", "transformer", "hf-gpt2", "hf-bert", "hf-vit")
_VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"amp": "bf16"},
    {"activation_checkpointing": True},
    {"grad_accumulation": 4},
    {"optimizer": "sgd"},
)
_STEPS = 4


class Found(NamedTuple):
    name: str
    allocated_error_pct: float
    reserved_error_pct: float


def measured(values: dict[str, Any]) -> tuple[int, int]:
    """The peak of allocated bytes in the steps from the second on, and of reserved bytes, above the level."""
    settings = resolve(values)
    device = open_device(settings.device)
    source = open_source(settings)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    level_bytes, reserved_bytes = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with device.torch_device:
        network = build_model(settings, source.shape)
    workload = Workload(settings, device, network, source)
    for step in range(_STEPS):
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(workload.micro_batches):
            batch = workload.next_batch()
            inputs, targets = workload.to_device(batch)
            loss = workload.forward(inputs, targets)
            workload.backward(loss)
        workload.update()
        del batch, inputs, targets, loss
    torch.cuda.synchronize()
    return (
        torch.cuda.max_memory_allocated() - level_bytes,
        torch.cuda.max_memory_reserved() - reserved_bytes,
    )


def compared(predictor: Predictor, target: Target, model: str, changes: dict[str, Any]) -> Found:
    values = {"model": model, "preset": "workstation", "batch_size": 16, "device": "cuda", "num_workers": 0}
    values |= {"data_samples": 512, **changes}
    answer = predictor.wait(resolve(values), target)
    assert isinstance(answer, Prediction), answer
    assert answer.peak_reserved_bytes is not None
    allocated, reserved = measured(values)
    return Found(
        f"{model} {changes}",
        100 * (answer.peak_allocated_bytes / allocated - 1),
        100 * (answer.peak_reserved_bytes / reserved - 1),
    )


def test_predictions_are_near_the_allocators_own_peaks(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The goal is 5 % of the allocated peak on average. What is asserted is looser: kernels differ from GPU
    to GPU, and the report shows each case."""
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") is None, "the replay follows the default settings"
    target = Target.of(open_device("cuda").facts)
    with Predictor(tmp_path) as predictor:
        found = [compared(predictor, target, m, changes) for m in _MODELS for changes in _VARIANTS]
    for case in found:
        errors = f"allocated {case.allocated_error_pct:+.1f} %, reserved {case.reserved_error_pct:+.1f} %"
        record_property(case.name, errors)
    mean_pct = statistics.fmean(abs(case.allocated_error_pct) for case in found)
    record_property("mean absolute error of the allocated peak", f"{mean_pct:.1f} % (goal: 5 %)")
    assert mean_pct <= 15
