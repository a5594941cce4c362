"""Test the iterator in place of a loader's own: what it yields after an error, and what it keeps."""

import weakref
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import attached, recorded

_SAMPLES, _BATCH, _DAMAGED_BATCH = 90, 4, 15
_STEPS = -(-_SAMPLES // _BATCH)


class Damaged(TensorDataset):
    """Fails for one sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index == _DAMAGED_BATCH * _BATCH + 1:
            raise OSError("sample is damaged")
        return tuple(tensor[index] for tensor in self.tensors)


def a_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1, 2)
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def test_a_loader_goes_on_after_an_error_that_the_script_handles(tmp_path: Path) -> None:
    model, optimizer = a_training()
    data = Damaged(torch.arange(_SAMPLES, dtype=torch.float32)[:, None])
    seen: list[float] = []
    errors = 0
    with attached(tmp_path) as (session, folder, guard):
        batches = iter(DataLoader(data, batch_size=_BATCH))
        assert len(batches) == _STEPS
        while True:
            is_plain = session.plain.batches is not None
            try:
                (inputs,) = next(batches)
            except OSError:
                assert is_plain
                errors += 1
                continue
            except StopIteration:
                break
            seen += inputs[:, 0].tolist()
            model(inputs).square().mean().backward()
            optimizer.step()
        assert next(batches, None) is None
        session.end(None)
        assert guard.message is None
    damaged = range(_DAMAGED_BATCH * _BATCH, (_DAMAGED_BATCH + 1) * _BATCH)
    assert errors == 1
    assert seen == [number for number in range(_SAMPLES) if number not in damaged]
    samples = [row.samples for row in recorded(folder).steps]
    assert samples == [_BATCH] * (_STEPS - 2) + [_SAMPLES % _BATCH]


def test_nothing_keeps_a_batch_that_the_script_has_dropped(tmp_path: Path) -> None:
    model, optimizer = a_training()
    data = TensorDataset(torch.randn(_SAMPLES, 1))
    with attached(tmp_path) as (session, _, guard):
        for (inputs,) in DataLoader(data, batch_size=_BATCH):
            loss = model(inputs * 1).square().mean()
            alive = weakref.ref(inputs)
            del inputs
            assert alive() is None
            loss.backward()
            optimizer.step()
        session.end(None)
    assert guard.message is None
