"""Test that the samples and tokens of a script's unobserved steps are those of their batches."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.analysis.timing.overhead import BlockPlan
from harness.records.overhead import UnobservedRow
from harness.store.reader import LogReader
from harness.watch import instruments
from tests.attach_factories import LAST, attached

_PLAN = BlockPlan(steps=4, discarded=1, by_block=False)
# Batches of 5 and of 2 in turns.
_BATCH, _SAMPLES, _LENGTH = 5, 7, 3
_EPOCHS = (_PLAN.apart + 40) // 2


def plain(model: nn.Module, inputs: Tensor) -> Tensor:
    """One call of the model."""
    loss: Tensor = model(inputs).square().mean()
    return loss


def with_another_call(model: nn.Module, inputs: Tensor) -> Tensor:
    """A step that is not plain: the batch is evaluated as well."""
    with torch.no_grad():
        model(inputs)
    return plain(model, inputs)


def train(model: nn.Module, data: Tensor, take: Callable[[nn.Module, Tensor], Tensor]) -> list[int]:
    """Train with uneven batches; return their sizes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, sizes = DataLoader(TensorDataset(data), batch_size=_BATCH), []
    for _ in range(_EPOCHS):
        for (inputs,) in loader:
            take(model, inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes.append(len(inputs))
    return sizes


def block_of(
    home: Path, model: nn.Module, data: Tensor, take: Callable[[nn.Module, Tensor], Tensor]
) -> tuple[UnobservedRow, int]:
    """Train under watch; return the only block, and the samples that its steps have trained on."""
    with attached(home) as (session, folder, guard):
        sizes = train(model, data, take)
        session.end(None)
        assert guard.message is None
    with LogReader(folder.log) as log:
        (block,) = log.overhead.unobserved(1, LAST)
        assert log.telemetry.samples_trained(1, LAST) == sum(sizes)
    assert block.last_step - block.first_step == _PLAN.steps - 1
    return block, sum(sizes[block.first_step - 1 : block.last_step])


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "SYNCHRONOUS", _PLAN)


@pytest.mark.slow
@pytest.mark.parametrize("take", [plain, with_another_call])
def test_samples_of_unobserved_steps_are_those_of_their_uneven_batches(
    tmp_path: Path, take: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    block, samples = block_of(tmp_path, nn.Linear(4, 2), torch.ones(_SAMPLES, 4), take)
    assert (block.samples, block.tokens) == (samples, None)


@pytest.mark.slow
@pytest.mark.parametrize("take", [plain, with_another_call])
def test_so_are_the_tokens_of_text(tmp_path: Path, take: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4 * _LENGTH, 1))
    data = torch.ones(_SAMPLES, _LENGTH, dtype=torch.int64)
    block, samples = block_of(tmp_path, model, data, take)
    assert (block.samples, block.tokens) == (samples, samples * _LENGTH)
