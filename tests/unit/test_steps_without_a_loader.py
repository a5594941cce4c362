"""Steps of scripts that cut their batches themselves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

BATCH, STEPS = 5, 12


class Parts:
    """A model and its optimizer."""

    def __init__(self, lr: float = 0.01) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def loss(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(inputs).square().mean()
        return loss


def sharpness_aware(parts: Parts, inputs: Tensor) -> None:
    """Gradients at the weights, and again at weights nearby."""
    parts.loss(inputs).backward()
    gradients = [weight.grad.clone() for weight in parts.model.parameters() if weight.grad is not None]
    with torch.no_grad():
        torch._foreach_add_(list(parts.model.parameters()), gradients)
    parts.optimizer.zero_grad()
    parts.loss(inputs).backward()
    with torch.no_grad():
        torch._foreach_sub_(list(parts.model.parameters()), gradients)
    parts.optimizer.step()


def twice_with_dropout(parts: Parts, inputs: Tensor) -> None:
    """Two passes over each of two micro-batches."""
    for part in inputs, inputs + 1:
        (parts.loss(part) + parts.loss(part)).backward()
    parts.optimizer.step()
    parts.optimizer.zero_grad()


@pytest.mark.parametrize(("update", "samples"), [(sharpness_aware, BATCH), (twice_with_dropout, 2 * BATCH)])
def test_the_same_inputs_once_more_add_no_samples(
    tmp_path: Path, update: Callable[[Parts, Tensor], None], samples: int
) -> None:
    parts = Parts()

    def train() -> None:
        for _ in range(STEPS):
            update(parts, torch.randn(BATCH, 4))

    assert [row.samples for row in steps_of(tmp_path, train).steps] == [samples] * STEPS


def test_each_batch_that_is_copied_into_one_buffer_counts(tmp_path: Path) -> None:
    parts, buffer = Parts(), torch.empty(BATCH, 4)

    def train() -> None:
        for _ in range(STEPS):
            for _ in range(2):
                parts.loss(buffer.copy_(torch.randn(BATCH, 4))).backward()
            parts.optimizer.step()
            parts.optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, train).steps] == [2 * BATCH] * STEPS


def test_an_evaluation_before_the_update_of_a_closure_is_of_no_step(tmp_path: Path) -> None:
    parts = Parts()
    optimizer = torch.optim.LBFGS(parts.model.parameters(), lr=0.01, max_iter=2)

    def train() -> None:
        for number in range(STEPS):
            inputs = torch.randn(BATCH, 4)

            def closure(inputs: Tensor = inputs) -> Tensor:
                optimizer.zero_grad()
                loss = parts.loss(inputs)
                loss.backward()
                return loss

            optimizer.step(closure)
            if number == STEPS // 2:
                parts.model.eval()
                with torch.no_grad():
                    parts.loss(inputs)
                parts.model.train()

    log = steps_of(tmp_path, train)
    assert list(log.evaluations_ns) == [STEPS // 2 + 2]
    assert log.unexplained_gaps_ns() == {}


def test_slices_of_points_along_rays_are_added_and_time_steps_are_not(tmp_path: Path) -> None:
    points, sequence = torch.randn(BATCH, 6, 4), torch.randn(7, BATCH, 4)

    def script() -> None:
        parts = Parts()
        for step in range(STEPS):
            is_first = step < STEPS // 2
            slices = points.reshape(-1, 4).split(7) if is_first else sequence.unbind()
            torch.cat([parts.model(one) for one in slices]).square().mean().backward()
            parts.optimizer.step()
            parts.optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples == [6 * BATCH] * (STEPS // 2) + [BATCH] * (STEPS // 2)


def test_optimizers_that_are_created_after_the_last_batch_make_steps_from_their_first_update_on(
    tmp_path: Path,
) -> None:
    loader = DataLoader(TensorDataset(torch.randn(4 * BATCH, 4)), batch_size=BATCH)

    def script() -> None:
        parts = Parts()
        for (inputs,) in loader:
            parts.loss(inputs).backward()
            parts.optimizer.step()
        for _ in range(3):
            parts.optimizer = torch.optim.SGD(parts.model.parameters(), lr=0.01)
            for _ in range(2):
                parts.loss(torch.randn(1, 4)).backward()
                parts.optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [BATCH] * 4 + [1] * 6


@pytest.mark.parametrize(("sizes", "are_slices"), [((7, 2, 3), False), ((7, 2, 3), True), ((7, 7), True)])
@pytest.mark.parametrize("scales", [False, True])
def test_calls_between_a_loss_and_its_gradients_count_no_samples(
    tmp_path: Path, sizes: tuple[int, ...], are_slices: bool, scales: bool
) -> None:
    """As for the loss of a validation, and one of a test."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    points = torch.randn(sum(sizes), 2)
    parts = [part if are_slices else part.clone() for part in points.split(sizes)]

    def train() -> None:
        for _ in range(8):
            loss, *_ = (model(part).square().mean() for part in parts)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert steps_of(tmp_path, train).samples == [7] * 8


def test_calls_for_several_losses_count_the_newest_ones_samples(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            torch.autograd.backward([model(torch.randn(size, 2)).square().mean() for size in (4, 7)])
            optimizer.step()

    assert steps_of(tmp_path, train).samples == [7] * 5
