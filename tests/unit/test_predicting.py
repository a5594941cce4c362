"""Test what is predicted: real torch on fake tensors, for the models of the catalog."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from harness.catalog import MODELS
from harness.data.source import open_source, shape_of
from harness.models.base import LossModel
from harness.predict import predicting, tracing
from harness.predict.answer import CATEGORIES, Impossible, Prediction, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve
from tests.train_factories import raising

pytestmark = pytest.mark.slow

CUDA = Target(DeviceKind.CUDA, "a GPU", None, (9, 0))
CPU = Target(DeviceKind.CPU, "the CPU")
GIB = 2**30


def predicted(target: Target = CUDA, **values: Any) -> Prediction:
    return _answer(Question.of(resolve(values), target))


@cache
def _answer(question: Question) -> Prediction:
    """Many tests compare with the same prediction."""
    answer = predict(question, 0)
    assert isinstance(answer, Prediction), answer
    return answer


def part(prediction: Prediction, category: MemoryCategory) -> int:
    return next(p.size_bytes for p in prediction.parts if p.category is category)


def parameters(model: str, preset: str = "laptop") -> int:
    return MODELS[model].preset(preset).parameters or 0


FAST = ("mlp", "cnn", "lstm", "transformer")
ON_CUDA = [
    pytest.param(model, CUDA, id=f"{model}-cuda", marks=[] if model in FAST else [pytest.mark.long])
    for model in MODELS
]
ON_CPU = [pytest.param(model, CPU, id=f"{model}-cpu") for model in FAST]


@pytest.mark.parametrize(("model", "target"), [*ON_CUDA, *ON_CPU])
def test_the_parts_sum_to_the_peak(model: str, target: Target) -> None:
    result = predicted(target, model=model)
    assert sum(p.size_bytes for p in result.parts) == result.peak_allocated_bytes
    assert tuple(p.category for p in result.parts) == CATEGORIES
    assert all(p.size_bytes >= 0 for p in result.parts)
    assert result.static_bytes < result.peak_allocated_bytes
    weights = part(result, MemoryCategory.WEIGHTS)
    assert 4 * parameters(model) <= weights < 4 * parameters(model) + 200_000
    assert sum(m.parameter_bytes for m in result.modules) == pytest.approx(weights, rel=0.01)
    if target is CUDA:
        assert result.least_reserved_bytes is not None
        assert result.peak_reserved_bytes is not None
        assert result.peak_allocated_bytes <= result.least_reserved_bytes <= result.peak_reserved_bytes


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_adam_keeps_two_tensors_a_parameter_and_sgd_none(optimizer: str) -> None:
    result = predicted(model="transformer", optimizer=optimizer)
    retained = part(result, MemoryCategory.OPTIMIZER)
    if optimizer == "sgd":
        assert retained == 0
    else:
        assert retained == pytest.approx(8 * parameters("transformer"), rel=0.05)


def test_a_wide_shallow_model_peaks_in_the_optimizer_with_its_gradients() -> None:
    result = predicted(model="mlp", preset="workstation")
    whole = 4 * parameters("mlp", "workstation")
    assert result.phase == "optimizer"
    assert part(result, MemoryCategory.GRADIENTS) == pytest.approx(whole, rel=0.01)
    assert part(result, MemoryCategory.TEMPORARIES) == pytest.approx(whole, rel=0.05)  # foreach


def test_activations_grow_with_the_batch_and_weights_do_not() -> None:
    small, large = (predicted(model="transformer", batch_size=n) for n in (32, 64))
    assert part(small, MemoryCategory.WEIGHTS) == part(large, MemoryCategory.WEIGHTS)
    ratio = part(large, MemoryCategory.ACTIVATIONS) / part(small, MemoryCategory.ACTIVATIONS)
    assert ratio == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"amp": "bf16"},
        {"amp": "fp16"},
        {"activation_checkpointing": True},
        {"offload_saved_tensors": True},
        {"batch_size": 32, "grad_accumulation": 2},
    ],
    ids=str,
)
def test_what_saves_activations_lowers_the_peak(changes: dict[str, Any]) -> None:
    base: dict[str, Any] = {"model": "transformer", "batch_size": 64}
    before, after = predicted(**base), predicted(**{**base, **changes})
    assert part(after, MemoryCategory.ACTIVATIONS) < 0.8 * part(before, MemoryCategory.ACTIVATIONS)
    assert after.peak_allocated_bytes < before.peak_allocated_bytes


def test_offloaded_activations_leave_the_device() -> None:
    assert part(predicted(model="mlp", offload_saved_tensors=True), MemoryCategory.ACTIVATIONS) < 1000


def test_accumulation_alone_adds_gradients_under_the_activations() -> None:
    base: dict[str, Any] = {"model": "transformer", "batch_size": 32}
    once, twice = predicted(**base), predicted(**base, grad_accumulation=2)
    added = twice.peak_allocated_bytes - once.peak_allocated_bytes
    assert 0 < added <= 4.2 * parameters("transformer")


def test_gradients_that_are_filled_with_zeros_stay_between_steps() -> None:
    retained, freed = (predicted(model="transformer", set_to_none=on) for on in (False, True))
    difference = retained.static_bytes - freed.static_bytes
    assert difference == pytest.approx(4 * parameters("transformer"), rel=0.05)


@pytest.mark.parametrize("impl", ["loop", "foreach", "fused"])
def test_every_kind_of_optimizer_kernel_is_traced(impl: str) -> None:
    assert predicted(model="mlp", optimizer_impl=impl).peak_allocated_bytes > 0


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
def test_channels_last_is_traced(target: Target) -> None:
    assert predicted(target, model="cnn", channels_last=True).peak_allocated_bytes > 0


def test_each_thread_with_products_has_a_cublas_workspace() -> None:
    new = predicted(model="mlp")
    old = predicted(CUDA._replace(capability=(8, 0)), model="mlp")
    assert part(new, MemoryCategory.LIBRARIES) == 2 * 32 * 2**20
    assert part(old, MemoryCategory.LIBRARIES) == 2 * 8_519_680


def test_what_is_far_too_large_for_this_machine_is_predicted_all_the_same() -> None:
    assert predicted(model="mlp", preset="h200").peak_allocated_bytes > 29 * GIB


def test_each_module_holds_its_own() -> None:
    result = {m.module: m for m in predicted(model="transformer").modules}
    head = result["blocks.0.feed_forward.widen"]
    assert head.kind == "Linear"
    assert head.parameter_bytes == pytest.approx(4 * (128 * 512 + 512), abs=1024)
    assert head.gradient_bytes == head.parameter_bytes
    assert head.optimizer_bytes == pytest.approx(2 * head.parameter_bytes, abs=2048)
    assert head.activation_bytes == 4 * 16 * 64 * 512


def test_compiling_is_left_out_and_that_is_said() -> None:
    assert any("torch.compile" in note for note in predicted(model="mlp", compile=True).notes)


class _Picky(LossModel):
    """Keeps what is positive: how much that is depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return inputs[inputs > 0].sum() * self.weight.sum() + targets.sum()


class _Copied(LossModel):
    """A layer and a copy of it, as torch's TransformerEncoder has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.copied = deepcopy(self.layer)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = self.copied(self.layer(inputs.flatten(1)[:, :8]))
        return outputs.square().mean() + 0 * targets.sum()


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # By torch, as it copies.
def test_the_copy_of_a_module_is_traced_without_a_copy_of_what_traces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "build_model", lambda *_: _Copied())
    traced = tracing.trace(Question.of(resolve({"model": "mlp"}), CPU))
    weights: list[Any] = [*traced.model.parameters()]
    assert len(weights) == 4
    assert len({id(weight.fake_mode) for weight in weights}) == 1


def impossible(monkeypatch: pytest.MonkeyPatch, build: Any) -> str:
    monkeypatch.setattr(tracing, "build_model", build)
    answer = predict(Question.of(resolve({"model": "mlp"}), CPU), None)
    assert isinstance(answer, Impossible)
    return answer.reason


def test_shapes_that_depend_on_values_cannot_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "depend on the values" in impossible(monkeypatch, lambda *_: _Picky())


def test_a_model_that_cannot_be_traced_is_told_of_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = impossible(monkeypatch, raising(RuntimeError("no kernel for this\nand more")))
    assert result == "This model cannot be traced without running it: no kernel for this"
    result = impossible(monkeypatch, raising(IndexError("7")))
    assert result == "This model cannot be traced without running it: IndexError: 7"


@pytest.mark.parametrize("data", ["digits", "shapes", "synthetic", "images"])
def test_shapes_are_those_of_the_sources(data: str, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "one.png")
    values = {"model": "cnn", "data": data, "data_path": str(tmp_path), "data_samples": 4, "image_size": 16}
    settings = resolve(values)
    assert shape_of(settings) == open_source(settings).shape


@pytest.mark.parametrize("data", ["stdlib-text", "synthetic", "text"])
def test_shapes_of_text_are_those_of_the_sources(data: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 100)
    settings = resolve({"model": "transformer", "data": data, "data_path": str(tmp_path)})
    assert shape_of(settings) == open_source(settings).shape


def test_an_error_that_no_model_of_the_catalog_raises_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_question: object) -> None:
        raise KeyError("a fault of the prediction")

    monkeypatch.setattr(predicting, "trace", fail)
    with pytest.raises(KeyError, match="a fault of the prediction"):
        predicting.predict(Question.of(resolve({"model": "mlp"}), Target(DeviceKind.CPU, "the CPU")), None)
