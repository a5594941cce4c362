"""Tensors that were left on the CPU, and those that are on another device on purpose."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.watch.inspect.placement import misplaced
from tests.placement_factories import CPU, FIRST, SECOND, on
from tests.train_factories import a_step, a_workload


def a_layer(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer of these tensors."""
    layer = nn.Linear(1, 1)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def a_training(model: nn.Module, loss: Tensor) -> Any:
    """The inspection of a training with an optimizer without state."""
    return SimpleNamespace(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=loss.reshape(())
    )


def names(training: Any) -> list[str]:
    """The names of the tensors that are misplaced in a training on the first GPU."""
    return [f"{one.what} {one.name} on {one.device}" for one in misplaced(training, FIRST)]


def test_everything_that_lies_on_the_device_is_not_named() -> None:
    workload = a_workload(optimizer="adam", optimizer_impl="loop")
    a_step(workload)
    assert misplaced(workload, CPU) == []


def test_what_was_left_behind_is_named_the_largest_first() -> None:
    layer = a_layer(on(FIRST, 4, 4), torch.ones(4))
    model = nn.Sequential(layer)
    model.register_buffer("positions", torch.zeros(1 << 20))
    training = a_training(model, torch.zeros(1))
    training.optimizer.state[layer.weight] = {"step": torch.ones(()), "exp_avg": torch.zeros(4, 4)}
    tensors = misplaced(training, FIRST)
    assert [(one.what, one.name, one.device, one.size_bytes) for one in tensors] == [
        ("buffer", "positions", "cpu", 4 << 20),
        ("optimizer state", "exp_avg of 0.weight", "cpu", 64),
        ("parameter", "0.bias", "cpu", 16),
        ("loss", "the loss", "cpu", 4),
    ]


def test_a_model_split_over_gpus_has_nothing_misplaced() -> None:
    layers = a_layer(on(FIRST, 4, 4), on(FIRST, 4)), a_layer(on(SECOND, 4, 4), on(SECOND, 4))
    training = a_training(nn.Sequential(*layers), on(SECOND, 1))
    training.optimizer.state[layers[1].weight] = {"exp_avg": on(SECOND, 4, 4)}
    assert names(training) == []


def test_a_part_that_is_completely_on_the_cpu_is_there_on_purpose() -> None:
    """As an embedding, whose optimizer has its state there; such a part may also compute the loss."""
    embedding, layer = nn.Embedding(4, 4), a_layer(on(FIRST, 4, 4), on(FIRST, 4))
    training = a_training(nn.Sequential(embedding, layer), torch.zeros(1))
    training.optimizer.state[embedding.weight] = {"exp_avg": torch.zeros(4, 4)}
    assert names(training) == []


def test_a_weight_that_modules_share_is_left_behind_by_the_one_on_the_gpu() -> None:
    embedding, head = nn.Embedding(4, 4), a_layer(on(FIRST, 4, 4), on(FIRST, 4))
    head.weight = embedding.weight
    training = a_training(nn.Sequential(embedding, head), on(FIRST, 1))
    assert names(training) == ["parameter 1.weight on cpu"]


def test_a_loss_that_is_not_known_is_nowhere() -> None:
    layer = a_layer(on(FIRST, 4, 4), on(FIRST, 4))
    assert names(a_training(layer, torch.full((1,), torch.nan))) == []


def test_weights_that_fsdp_offloads_are_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    layer = nn.Linear(4, 4)
    for weight in layer.parameters():
        weight.device_mesh = SimpleNamespace(device_type="cuda")  # type: ignore[attr-defined]
    layer.register_buffer("scale", on(FIRST, 4))
    assert names(a_training(layer, on(FIRST, 1))) == []


def test_the_injected_faults_are_what_is_looked_for() -> None:
    left = a_workload(inject="elsewhere:64KiB")
    a_step(left)
    buffers = {name: buffer.nbytes for name, buffer in left.model.named_buffers()}
    assert buffers == {"left_behind": 64 << 10}
    for layer in left.model.modules():
        for name, weight in layer.named_parameters(recurse=False):
            setattr(layer, name, nn.Parameter(on(FIRST, *weight.shape)))
    training = a_training(left.model, on(FIRST, 1))
    assert names(training) == ["buffer left_behind on cpu"]
    a_step(a_workload(inject="sync"))
