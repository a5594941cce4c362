"""Storages followed from birth to death: real tensors, and fake ones."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch
from torch import UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.tracking.storages import StorageWatch


class Register:
    """Keeps what a watch tells: sizes by key, of the living; names of the functions, in order."""

    def __init__(self) -> None:
        self.living: dict[int, int] = {}
        self.functions: list[str] = []
        self._keys = count()
        self.watch = StorageWatch[int](self._born, self._died)

    def _born(self, _storage: UntypedStorage, size_bytes: int, function: Any) -> int:
        key = next(self._keys)
        self.living[key] = size_bytes
        self.functions.append(str(function))
        return key

    def _died(self, key: int) -> None:
        del self.living[key]

    @property
    def bytes(self) -> int:
        return sum(self.living.values())


@pytest.fixture
def register() -> Register:
    return Register()


def test_a_storage_is_told_of_when_it_is_made_and_when_it_is_freed(register: Register) -> None:
    with register.watch:
        tensor = torch.zeros(256)
        assert register.bytes == 1024
        del tensor
    assert register.bytes == 0
    assert register.functions == ["aten.zeros.default"]


def test_views_and_in_place_operators_make_no_storage(register: Register) -> None:
    with register.watch:
        tensor = torch.zeros(4, 4)
        view = tensor.t()[1:].add_(1)
        del tensor
        assert list(register.living.values()) == [64]
        del view
    assert register.bytes == 0


def test_an_operator_that_returns_a_view_of_an_older_tensor_makes_none(register: Register) -> None:
    older = torch.zeros(4, 4)
    with register.watch:
        view = older.view(16).mul_(2)
    assert view.numel() == 16
    assert not register.functions


def test_an_older_storage_is_followed_once_it_is_adopted(register: Register) -> None:
    older = torch.zeros(8)
    key = register.watch.adopt(older)
    assert register.watch.adopt(older[2:]) == key == register.watch.key_of(older)
    with register.watch:
        older.add_(1)
    assert register.functions == ["None"]
    del older
    assert register.bytes == 0


def test_a_resized_storage_dies_and_is_born_again(register: Register) -> None:
    with register.watch:
        tensor = torch.zeros(8)
        tensor.resize_(64)
        assert list(register.living.values()) == [256]
    del tensor
    assert register.bytes == 0


def test_several_results_of_one_operator_are_each_told_of(register: Register) -> None:
    with register.watch:
        values, order = torch.sort(torch.zeros(16))
        assert sorted(register.living.values()) == [64, 128]
        del values, order
    assert register.bytes == 0


# Before torch 2.13, even where they are requested.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_tensors_without_a_storage_are_passed_over(register: Register) -> None:
    with register.watch:
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[0]]), torch.tensor([1.0]), (4,), check_invariants=True
        )
        assert register.watch.key_of(sparse) is None


def test_a_storage_freed_after_the_watch_is_still_told_of_until_it_forgets(register: Register) -> None:
    with register.watch:
        retained, forgotten = torch.zeros(8), torch.zeros(16)
    del retained
    assert list(register.living.values()) == [64]
    register.watch.forget()
    del forgotten
    assert list(register.living.values()) == [64]


@pytest.mark.parametrize("mode", [nullcontext, FakeTensorMode], ids=["real", "fake"])
def test_a_training_step_leaves_weights_and_gradients(register: Register, mode: Callable[[], Any]) -> None:
    with mode(), register.watch:
        model = nn.Linear(64, 32, bias=False)
        loss = model(torch.ones(8, 64)).sum()
        peak = register.bytes
        loss.backward()
        del loss
        gc.collect()
        assert register.bytes == 2 * 64 * 32 * 4 < peak + 64 * 32 * 4
        del model
    assert register.bytes == 0
