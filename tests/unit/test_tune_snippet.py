"""The snippet of the best settings runs as it stands, and has only the lines that the settings need."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from harness.records.run import DeviceKind
from harness.settings.resolve import resolve
from harness.tune.snippet import snippet


class SmallNet(nn.Module):
    """Convolutions in blocks, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(3, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = torch.relu(block(images))
        scores: torch.Tensor = self.head(images.mean((2, 3)))
        return scores


def run_snippet(**values: Any) -> dict[str, Any]:
    """Execute the snippet of these settings on the CPU; return its variables."""
    settings = resolve({"model": "cnn", "preset": "laptop", "batch_size": 4, **values})
    images = torch.randn(16, 3, 8, 8)
    scope: dict[str, Any] = {
        "model": SmallNet(),
        "dataset": TensorDataset(images, torch.randint(0, 2, (16,))),
        "loss_function": nn.functional.cross_entropy,
    }
    precision = torch.get_float32_matmul_precision()
    try:
        exec(snippet(settings, DeviceKind.CPU), scope)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_flush_denormal(False)
    return scope


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"amp": "bf16", "channels_last": True},
        {"amp": "fp16", "grad_accumulation": 2},
        {"activation_checkpointing": True, "optimizer_impl": "foreach"},
        {"matmul_precision": "medium", "optimizer_impl": "fused", "set_to_none": False, "optimizer": "sgd"},
        {"num_workers": 1, "optimizer_impl": "loop"},
    ],
    ids=lambda values: "+".join(values) or "defaults",
)
def test_the_snippet_trains_the_model_as_it_stands(values: dict[str, Any]) -> None:
    before = {name: weight.clone() for name, weight in SmallNet().state_dict().items()}
    scope = run_snippet(**values)
    assert torch.isfinite(scope["loss"])
    weights = scope["model"].state_dict()
    assert all(torch.isfinite(weights[name]).all() for name in before)
    assert scope["optimizer"].state_dict()["state"] or values.get("optimizer") == "sgd"


def test_the_learning_rate_has_all_its_digits() -> None:
    scope = run_snippet(learning_rate=0.00012345678)
    assert scope["optimizer"].param_groups[0]["lr"] == 0.00012345678


def test_autocast_and_layout_take_effect() -> None:
    scope = run_snippet(amp="bf16", channels_last=True)
    assert scope["inputs"].is_contiguous(memory_format=torch.channels_last)
    assert "torch.bfloat16" in snippet(resolve({"model": "cnn", "amp": "bf16"}), DeviceKind.CUDA)


def test_settings_of_the_default_leave_no_line() -> None:
    text = snippet(resolve({"model": "cnn"}), DeviceKind.CUDA)
    for word in (
        "autocast",
        "GradScaler",
        "checkpoint",
        "compile",
        "num_workers",
        "pin_memory",
        "channels_last",
    ):
        assert word not in text


def test_a_gpus_settings_are_in_the_snippet() -> None:
    values = {
        "pin_memory": True,
        "non_blocking": True,
        "cudnn_benchmark": True,
        "compile": True,
        "amp": "fp16",
    }
    text = snippet(resolve({"model": "cnn", **values}), DeviceKind.CUDA)
    compile(text, "snippet", "exec")
    for line in (
        'device = torch.device("cuda")',
        "torch.backends.cudnn.benchmark = True",
        "model = torch.compile(model)",
        "    pin_memory=True,",
        "    inputs = inputs.to(device, non_blocking=True)",
        "    scaler.step(optimizer)",
    ):
        assert line in text.splitlines()
