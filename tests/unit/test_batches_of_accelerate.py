"""Test the samples of steps with a loader of Accelerate, which reads a batch ahead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.attach_factories import steps_of
from tests.session_factories import a_session

_DATA: Any = torch.ones(38, 2)
_EPOCHS = 2


def _train(micro_batches: int, inputs_of: Callable[[Tensor], Tensor], *, dispatches: bool = False) -> None:
    loading = DataLoaderConfiguration(dispatch_batches=dispatches)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches, dataloader_config=loading)
    model: Any = nn.Linear(2, 1)
    loader: Any = DataLoader(_DATA, batch_size=4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-6), loader
    )
    for _ in range(_EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs_of(batch)).mean())
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for batch in loader:
                model(batch)
        model.train()


@pytest.mark.parametrize(("micro_batches", "dispatches"), [(1, False), (3, False), (1, True)])
@pytest.mark.parametrize(
    "inputs_of",
    [lambda batch: batch, lambda batch: torch.cat([batch, batch]), lambda batch: batch[:1]],
    ids=["whole batches", "two views at once", "a part"],
)
def test_each_step_has_the_samples_of_the_batches_that_the_script_has(
    tmp_path: Path, micro_batches: int, inputs_of: Callable[[Tensor], Tensor], dispatches: bool
) -> None:
    log = steps_of(tmp_path, lambda: _train(micro_batches, inputs_of, dispatches=dispatches))
    expected = [4] * 9 + [2] if micro_batches == 1 else [12, 12, 12, 2]
    assert [row.samples for row in log.steps] == _EPOCHS * expected


def test_samples_follow_a_batch_size_that_changes_within_an_epoch(tmp_path: Path) -> None:
    requests: list[str] = []
    sizes: list[int] = []
    with a_session(tmp_path) as attached:

        def note(batch: Tensor) -> Tensor:
            sizes.append(len(batch))
            if len(sizes) == 3:
                requests.append(attached.ask(batch_size=2))
            return batch

        _train(1, note)
    assert "loads batches ahead" in attached.answer(requests[0]).message
    assert {4, 2} == set(sizes[:8])
    with attached.log() as log:
        assert [row.samples for row in log.steps(1, 1_000)] == sizes
