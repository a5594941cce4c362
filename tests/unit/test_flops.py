"""Test what a sample's arithmetic is: counted on tensors without data, the same on every device."""

import json

import pytest
import torch
from torch import Tensor, nn

from harness.data.source import shape_of
from harness.demo.machine import FLOPS
from harness.demo.scenarios import SCENARIOS
from harness.models.base import LossModel
from harness.models.building import build_model
from harness.records.data import DataKind, DataShape
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.train.flops import count, count_sample, flops_rows

pytestmark = pytest.mark.slow

TEXT = DataShape(DataKind.TEXT, vocabulary=256, sequence_length=16)


def _settings(model: str, **values: object) -> Settings:
    return resolve({"model": model, "preset": "laptop", "data": "synthetic", **values})


class _Linear(LossModel):
    """Two linear layers on 3 × 4 × 4 images, without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 10, bias=False), nn.Linear(10, 5, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        scores = self.run_block(lambda pixels: self.second(self.first(pixels).relu()), inputs.flatten(1))
        return nn.functional.cross_entropy(scores, targets)


IMAGE = DataShape(DataKind.IMAGE, channels=3, height=4, width=4, classes=5)


def _linear() -> _Linear:
    with torch.device("meta"):
        return _Linear()


def test_a_multiply_add_is_two_operations() -> None:
    forward = 2 * (48 * 10 + 10 * 5)
    backward = 2 * (48 * 10) + 2 * 2 * (10 * 5)  # The images need no gradient.
    assert count(_linear(), IMAGE).flops == forward + backward


def test_checkpointing_computes_again_what_the_backward_pass_needs() -> None:
    network = _linear()
    plain = count(network, IMAGE).flops
    network.checkpointing = True
    assert count(network, IMAGE).flops == plain + 2 * 48 * 10


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "seq2seq", "gru"])
def test_operations_grow_linearly_with_the_batch(model: str) -> None:
    settings = _settings(model, sequence_length=8)
    shape = shape_of(settings)
    with torch.device("meta"):
        network = build_model(settings, shape)
    assert count(network, shape, 2).flops == count(network, shape, 7).flops


@pytest.mark.parametrize("model", ["rnn", "lstm", "gru"])
def test_recurrent_layers_cost_what_counting_every_token_says(model: str) -> None:
    settings = _settings(model, sequence_length=12)
    shape = shape_of(settings)
    with torch.device("meta"):
        network = build_model(settings, shape)
    assert count_sample(network, shape, False).flops == pytest.approx(count(network, shape).flops)


def test_a_transformer_costs_about_six_operations_a_parameter_and_token() -> None:
    settings = _settings("transformer", preset="h200")
    shape = shape_of(settings)
    with torch.device("meta"):
        network = build_model(settings, shape)
    counted = count_sample(network, shape, False).flops
    assert 1.0 < counted / (6 * 86_039_040 * settings.sequence_length) < 1.4  # Attention comes on top.


def test_counting_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    flops_rows(_settings("mlp"), shape_of(_settings("mlp")))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_says_what_it_was_counted_under() -> None:
    settings = _settings("mlp", image_size=16)
    rows = flops_rows(settings, shape_of(settings))
    assert [row.checkpointing for row in rows] == [0, 1]
    assert json.loads(rows[0].settings) == {
        "model": "mlp",
        "preset": "laptop",
        "data": "synthetic",
        "image_size": 16,
        "sequence_length": settings.sequence_length,
    }
    assert rows[0].uncounted == "[]"
    assert rows[0].took_ns > 0


def test_operations_without_a_formula_are_named() -> None:
    with torch.library._scoped_library("stepscope_test", "FRAGMENT") as library:
        library.define("strange(Tensor x) -> Tensor")
        library.impl("strange", torch.clone, "Meta")

        class Strange(_Linear):
            def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
                strange: Tensor = torch.ops.stepscope_test.strange(inputs.detach())
                return super().forward(strange, targets)

        with torch.device("meta"):
            network = Strange()
        result = count(network, IMAGE)
    assert result.uncounted == {"stepscope_test.strange"}
    assert result.flops == count(_linear(), IMAGE).flops


def test_the_demo_tells_what_its_model_would_cost() -> None:
    settings = SCENARIOS["steady"].settings
    rows = flops_rows(settings, shape_of(settings))
    assert [row.flops_per_sample for row in rows] == [row.flops_per_sample for row in FLOPS]
