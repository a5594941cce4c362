"""Every model of the catalog keeps the contract of `LossModel`."""

import os
import socket
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.catalog import MODELS
from harness.data.loading import open_loader
from harness.data.source import Batch, DataSource, open_source, shape_of
from harness.models.base import LossModel
from harness.models.building import build_model
from harness.settings import Settings
from harness.settings.resolve import resolve

pytestmark = pytest.mark.slow

PRESETS = [(spec.key, preset.name) for spec in MODELS.values() for preset in spec.presets]
CHECKPOINTING = [key for key, spec in MODELS.items() if spec.can_checkpoint]
CHANNELS_LAST = [key for key, spec in MODELS.items() if spec.can_channels_last]
IGNORED = -100
"""The target that torch's cross entropy leaves out of the mean."""


@cache
def source_of(settings: Settings) -> DataSource:
    return open_source(settings)


def small(key: str) -> tuple[LossModel, Batch]:
    """The laptop preset with seeded weights, and four samples of its own data."""
    settings = resolve({"model": key, "batch_size": 4})
    source = source_of(settings)
    torch.manual_seed(0)
    return build_model(settings, source.shape), source.fetch(np.arange(4))


def loss_and_gradients(model: LossModel, inputs: Tensor, targets: Tensor) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    torch.manual_seed(1)
    loss = model(inputs, targets)
    assert loss.shape == ()
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("key", "preset"), PRESETS)
def test_a_preset_has_the_parameters_it_states(key: str, preset: str) -> None:
    settings = resolve({"model": key, "preset": preset})
    with torch.device("meta"):
        model = build_model(settings, shape_of(settings))
    stated = MODELS[key].preset(preset).parameters
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == stated


@pytest.mark.parametrize("key", MODELS)
def test_three_real_steps_have_finite_losses_and_move_every_parameter(key: str) -> None:
    settings = resolve({"model": key, "batch_size": 4})
    source = source_of(settings)
    torch.manual_seed(settings.seed)
    model = build_model(settings, source.shape)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    with open_loader(source, settings, torch.device("cpu")) as loader:
        for _ in range(3):
            loss = model(*loader.next())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.isfinite(loss)
    assert loss.dtype is torch.float32
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "batch_size", "steps", "factor"),
    [
        ("mlp", 32, 100, 0.3),
        ("cnn", 32, 100, 0.4),
        pytest.param("rnn", 4, 60, 0.8, marks=pytest.mark.long),
        pytest.param("lstm", 4, 60, 0.8, marks=pytest.mark.long),
        pytest.param("gru", 4, 60, 0.8, marks=pytest.mark.long),
        pytest.param("transformer", 4, 40, 0.8, marks=pytest.mark.long),
        pytest.param("seq2seq", 4, 50, 0.85, marks=pytest.mark.long),
    ],
)
def test_the_loss_falls_on_real_data(key: str, batch_size: int, steps: int, factor: float) -> None:
    settings = resolve({"model": key, "batch_size": batch_size})
    source = source_of(settings)
    torch.manual_seed(settings.seed)
    model = build_model(settings, source.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    losses = []
    with open_loader(source, settings, torch.device("cpu")) as loader:
        for _ in range(steps):
            loss = model(*loader.next())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert np.mean(losses[-10:]) < factor * losses[0]


@pytest.mark.parametrize("key", CHECKPOINTING)
def test_checkpointing_changes_neither_loss_nor_gradients(key: str) -> None:
    model, batch = small(key)
    plain, gradients = loss_and_gradients(model, *batch)
    model.checkpointing = True
    checkpointed, again = loss_and_gradients(model, *batch)
    model.checkpointing = False
    assert loss_and_gradients(model, *batch)[0] == pytest.approx(plain)
    assert checkpointed == pytest.approx(plain)
    torch.testing.assert_close(again, gradients)


@pytest.mark.parametrize("key", ["cnn", "resnet", "transformer", "lstm", "hf-gpt2"])
def test_checkpointing_keeps_fewer_tensors_for_the_backward_pass(key: str) -> None:
    model, batch = small(key)

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def saved_bytes() -> int:
        retained: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                retained.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*batch)
        return sum(retained)

    plain = saved_bytes()
    model.checkpointing = True
    assert saved_bytes() < plain / 2


@pytest.mark.parametrize("key", MODELS)
def test_bf16_autocast_trains_with_a_float32_loss(key: str) -> None:
    model, batch = small(key)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*batch)
    loss.backward()
    assert loss.dtype is torch.float32
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.long
def test_an_lstm_trains_under_bf16_on_a_processor_without_kernels_of_it() -> None:
    code = """
import torch
from torch import nn
from harness.models.recurrent import RecurrentLanguageModel
model, tokens = RecurrentLanguageModel(nn.LSTM, 256, 8, 2), torch.ones(2, 3, dtype=torch.long)
with torch.autocast("cpu", torch.bfloat16):
    loss = model(tokens, tokens)
loss.backward()
assert all(torch.isfinite(p.grad).all() for p in model.parameters())
"""
    environ = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=120)


@pytest.mark.parametrize("key", CHANNELS_LAST)
def test_channels_last_gives_the_same_loss(key: str) -> None:
    model, (images, labels) = small(key)
    plain, _ = loss_and_gradients(model, images, labels)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    images = images.contiguous(memory_format=torch.channels_last)
    assert loss_and_gradients(model, images, labels)[0] == pytest.approx(plain, abs=1e-4)


# The library draws ViT's position embeddings until they lie in bounds, which fake tensors cannot tell.
@pytest.mark.long
@pytest.mark.parametrize("key", [key for key in MODELS if key != "hf-vit"])
def test_a_step_can_be_traced_without_memory(key: str) -> None:
    settings = resolve({"model": key, "batch_size": 4})
    source = source_of(settings)
    batch = source.fetch(np.arange(4))
    with FakeTensorMode() as mode:
        model = build_model(settings, source.shape)
        loss = model(mode.from_tensor(batch.inputs), mode.from_tensor(batch.targets))
        loss.backward()
    assert loss.shape == ()


@pytest.mark.long
@pytest.mark.parametrize("key", ["cnn", "transformer"])
def test_torch_compile_takes_the_model_whole(key: str) -> None:
    torch.compiler.reset()
    model, batch = small(key)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert compiled(*batch).item() == pytest.approx(model(*batch).item(), abs=1e-5)


def test_seq2seq_is_scored_on_the_second_half_alone() -> None:
    model, (inputs, targets) = small("seq2seq")
    half = inputs.shape[1] // 2
    other = targets.clone()
    other[:, : half - 1] = 0
    assert model(inputs, other).item() == model(inputs, targets).item()
    other[:, half - 1] = (other[:, half - 1] + 1) % 256
    assert model(inputs, other).item() != model(inputs, targets).item()


@pytest.mark.parametrize("key", ["transformer", "seq2seq", "hf-gpt2", "hf-llama", "rnn", "lstm", "gru"])
def test_a_token_is_predicted_from_those_before_it_alone(key: str) -> None:
    model, (inputs, targets) = small(key)
    scored = targets.clone()
    scored[:, -2:] = IGNORED
    later, earlier = inputs.clone(), inputs.clone()
    later[:, -2] = (later[:, -2] + 1) % 256
    earlier[:, -3] = (earlier[:, -3] + 1) % 256
    assert model(later, scored).item() == pytest.approx(model(inputs, scored).item(), abs=1e-6)
    assert model(earlier, scored).item() != pytest.approx(model(inputs, scored).item(), abs=1e-6)


def test_bert_hides_other_tokens_at_every_step() -> None:
    model, batch = small("hf-bert")
    torch.manual_seed(0)
    first, second = model(*batch).item(), model(*batch).item()
    torch.manual_seed(0)
    assert model(*batch).item() == first != second


def test_transformers_models_never_touch_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for key, spec in MODELS.items():
        if spec.requires == "transformers":
            small(key)
