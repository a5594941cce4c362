"""Losses that keep the memory of all elements' losses are traced with it, as torch has it."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.base import LossModel
from harness.predict import tracing
from harness.predict.answer import Target
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

BATCH, CLASSES = 32, 10
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "mse, sum": partial(functional.mse_loss, reduction="sum"),
    "mse, none": lambda scores, targets: functional.mse_loss(scores, targets, reduction="none"),
    "smooth l1": partial(functional.smooth_l1_loss, beta=0.5),
    "soft margin": functional.soft_margin_loss,
    "bce": functional.binary_cross_entropy,
    "bce, weight": lambda scores, targets: functional.binary_cross_entropy(scores, targets, weight=targets),
    "bce, sum": partial(functional.binary_cross_entropy, reduction="sum"),
}


class Loss(nn.Module):
    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.compute(scores, targets)


class Model(LossModel):
    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES))
        self.loss = Loss(compute)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        scores = torch.sigmoid(self.weight * inputs.flatten(1)[:, :1])
        loss: Tensor = self.loss(scores, torch.ones_like(scores)).sum()
        return loss + 0 * targets.sum()


@pytest.mark.parametrize("kind", [DeviceKind.CPU, DeviceKind.CUDA])
@pytest.mark.parametrize("name", LOSSES)
def test_the_result_of_a_loss_is_as_large_as_torchs(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: DeviceKind
) -> None:
    monkeypatch.setattr(tracing, "build_model", lambda *_: Model(LOSSES[name]))
    target = Target(kind, "a device", None, (9, 0) if kind is DeviceKind.CUDA else None)
    traced = tracing.trace(Question.of(resolve({"model": "mlp", "batch_size": BATCH}), target))
    phases = [phase.name for phase in traced.phases]
    forward = phases.index("forward")
    of_loss = [one.size_bytes for one in traced.births if one.module == "loss" and one.phase == forward]
    real = LOSSES[name](torch.rand(BATCH, CLASSES, requires_grad=True), torch.ones(BATCH, CLASSES))
    assert sum(of_loss) == real.untyped_storage().nbytes() == 4 * BATCH * CLASSES
