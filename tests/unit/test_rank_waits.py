"""The waits for other ranks: at the end of the backward pass, and for buffers in the forward pass."""

import copy
import pickle
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from harness.attach.discovery import replicas
from harness.watch.rank_waits import RankWaits
from harness.watch.timing import StepTimer


class Rank:
    """A model, what stands for the reducer of DDP, and a clock that advances by one at each reading and by
    `reduce_ns` in the reducer. `ready` counts the gradients of the pass under way."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.reduce_ns = self.ready = 0
        self._now_ns = count(1)
        self._reduced_ns = 0
        self.timer = StepTimer(lambda: next(self._now_ns) + self._reduced_ns)
        self.waits = RankWaits(self.timer)

    def follow(self) -> None:
        """Follow the model, after which the reducer gets its hooks, as it gets its gradients later."""
        self.waits.follow(self.model)
        for weight in self.model.parameters():
            weight.register_post_accumulate_grad_hook(self._accumulated)

    def backward(self, inputs: Tensor | None = None) -> None:
        """Compute the gradients of a batch."""
        self.ready = 0
        self.model(torch.ones(3, 4) if inputs is None else inputs).sum().backward()

    def _accumulated(self, _weight: Tensor) -> None:
        self.ready += 1
        if self.ready == 4:
            Variable._execution_engine.queue_callback(self._reduce)

    def _reduce(self) -> None:
        self._reduced_ns += self.reduce_ns


def a_rank(reduce_ns: int = 500) -> Rank:
    rank = Rank()
    rank.reduce_ns = reduce_ns
    rank.follow()
    return rank


def test_the_time_that_the_reducer_waits_is_measured_once() -> None:
    rank = a_rank()
    rank.backward()
    assert rank.waits.take().all_reduce_ns == 501
    assert rank.waits.take().all_reduce_ns is None


def test_the_waits_of_the_backward_passes_of_a_step_are_summed() -> None:
    rank = a_rank()
    for reduce_ns in (0, 0, 500):  # As in `no_sync`, up to the last one.
        rank.reduce_ns = reduce_ns
        rank.backward()
    assert rank.waits.take().all_reduce_ns == 503


def test_a_step_without_a_gradient_of_the_model_has_no_measurement() -> None:
    rank = a_rank()
    nn.Linear(4, 2)(torch.ones(3, 4)).sum().backward()
    assert rank.waits.take().all_reduce_ns is None


def test_nothing_is_measured_in_unobserved_steps() -> None:
    rank = a_rank()
    rank.timer.unobserve()
    rank.backward()
    assert rank.waits.take().all_reduce_ns is None
    rank.timer.restart()
    rank.backward()
    assert rank.waits.take().all_reduce_ns == 501


def test_a_backward_pass_that_fails_leaves_nothing_to_the_next_step() -> None:
    rank = a_rank()
    handle = next(rank.model.parameters()).register_hook(_fail)
    try:
        rank.backward()
    except RuntimeError:
        handle.remove()
    assert rank.waits.take().all_reduce_ns is None
    rank.backward()
    assert rank.waits.take().all_reduce_ns == 501


def _fail(_gradient: Tensor) -> None:
    raise RuntimeError


def test_the_last_part_of_a_backward_pass_with_reentrant_checkpoints_is_measured() -> None:
    rank = Rank()
    first, *rest = rank.model
    rank.reduce_ns = 500
    rank.follow()
    hidden = checkpoint(first, torch.ones(3, 4, requires_grad=True), use_reentrant=True)
    rank.ready = 0
    checkpoint(nn.Sequential(*rest), hidden, use_reentrant=True).sum().backward()
    assert rank.waits.take().all_reduce_ns == 501


def test_following_twice_is_following_once_and_closing_ends_it() -> None:
    rank = a_rank()
    rank.waits.follow(rank.model)
    rank.backward()
    assert rank.waits.take().all_reduce_ns == 501
    rank.waits.close()
    rank.backward()
    assert rank.waits.take().all_reduce_ns is None


def test_the_broadcast_of_buffers_is_measured_in_forward_passes_of_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", calls.append)
    rank = a_rank()
    replica = DistributedDataParallel.__new__(DistributedDataParallel)
    replica._sync_buffers()
    rank.backward()
    assert rank.waits.take() == (501, 1)
    with torch.no_grad():
        replica._sync_buffers()  # Of an evaluation.
    rank.backward()
    assert rank.waits.take() == (501, 0)
    rank.waits.close()
    assert DistributedDataParallel._sync_buffers == calls.append
    assert calls == [replica, replica]


def test_copies_of_a_followed_model_have_no_hook() -> None:
    model = nn.Linear(4, 2)
    waits = RankWaits(StepTimer(count().__next__))
    waits.follow(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(torch.ones(3, 4)).sum().backward()
        assert waits.take().all_reduce_ns is None


def test_a_model_without_gradients_is_not_followed() -> None:
    rank = Rank()
    rank.waits.follow(nn.Linear(2, 2).requires_grad_(requires_grad=False))
    rank.waits.close()


def test_replicas_are_found_inside_of_what_a_script_calls() -> None:
    replica = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(replica)
    outer = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([replica]))
    assert replicas([outer, nn.Linear(1, 1)]) == [replica]
