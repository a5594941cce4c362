"""Memory that is saved for a backward pass in the graphs behind the variables of a script."""

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from harness.analysis.oom.report import LiveVariable
from harness.watch.oom import graphs
from harness.watch.oom.variables import largest_variables

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"),
    reason="this torch does not show whether hooks have packed a saved tensor",
)
# Of 4 bytes: an input of 1,000 and activations of 2,000 per call, outputs of 10.
_CALLS = 5
_SAVED, _OUT = 4 * (1_000 + 2_000) * 10, 4 * 10 * 10
MODEL = nn.Sequential(nn.Linear(1_000, 2_000), nn.ReLU(), nn.Linear(2_000, 10))


def found(fill: Callable[[], FrameType]) -> dict[str, LiveVariable]:
    frame = fill()
    variables = largest_variables([frame], [frame.f_lineno], torch.device("cpu"), MODEL.parameters())
    return {one.name: one for one in variables}


def outputs(model: nn.Module = MODEL) -> list[Tensor]:
    return [model(torch.ones(10, 1_000)) for _ in range(_CALLS)]


def test_activations_that_kept_outputs_keep_count_for_their_variable() -> None:
    def fill() -> FrameType:
        outs = outputs()
        assert outs
        return sys._getframe()

    (outs,) = found(fill).values()
    assert (outs.held_bytes, outs.saved_bytes) == (_CALLS * (_SAVED + _OUT), _CALLS * _SAVED)
    assert outs.blocks == _CALLS * 3
    assert outs.is_complete


def test_a_sum_of_outputs_keeps_the_activations_of_all() -> None:
    def fill() -> FrameType:
        total: Any = 0
        for out in outputs():
            total = total + out.sum()
        del out
        return sys._getframe()

    assert found(fill)["total"].saved_bytes == _CALLS * _SAVED


def test_a_tensor_that_is_in_a_variable_counts_there_and_not_in_a_graph() -> None:
    def fill() -> FrameType:
        batch = torch.ones(10, 1_000)
        out, other = MODEL(batch), MODEL(batch)
        assert other is not out
        return sys._getframe()

    variables = found(fill)
    assert (variables["batch"].held_bytes, variables["batch"].saved_bytes) == (40_000, 0)
    assert sum(one.saved_bytes for one in variables.values()) == 2 * 80_000


def test_detached_outputs_and_those_after_a_backward_pass_keep_nothing() -> None:
    def fill() -> FrameType:
        outs = [out.detach() for out in outputs()]
        losses = [out.sum() for out in outputs()]
        for loss in losses:
            loss.backward()
        assert outs
        return sys._getframe()

    variables = found(fill)
    assert variables["outs"].held_bytes == _CALLS * _OUT
    assert sum(one.saved_bytes for one in variables.values()) == 0


class Doubled(torch.autograd.Function):
    """A function that keeps one tensor as torch advises, and one as its own."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones(1_000))
        ctx.mask = torch.ones(2_000)
        return 2 * value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def test_what_a_function_of_the_scripts_own_keeps_counts() -> None:
    def fill() -> FrameType:
        kept = Doubled.apply(torch.ones(1, requires_grad=True))  # type: ignore[no-untyped-call]  # torch's
        assert kept is not None
        return sys._getframe()

    assert found(fill)["kept"].saved_bytes == 4 * 3_000


def test_packed_tensors_are_not_unpacked_and_the_sum_says_at_least() -> None:
    unpacked = []

    def unpack(packed: tuple[Tensor]) -> Tensor:
        unpacked.append(packed)
        return packed[0]

    def fill() -> FrameType:
        with saved_tensors_hooks(lambda tensor: (tensor,), unpack):
            offloaded = outputs()
        checkpointed = checkpoint(MODEL, torch.ones(10, 1_000, requires_grad=True), use_reentrant=False)
        assert offloaded, checkpointed
        return sys._getframe()

    variables = found(fill)
    assert unpacked == []
    assert [one.is_complete for one in variables.values()] == [False, False]
    assert [one.saved_bytes for one in variables.values()] == [0, 0]


def test_a_walk_ends_at_its_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_NODES", 12)

    def fill() -> FrameType:
        outs = outputs()
        assert outs
        return sys._getframe()

    (outs,) = found(fill).values()
    assert 0 < outs.saved_bytes < _CALLS * _SAVED
    assert not outs.is_complete


def test_a_walk_keeps_nothing_alive() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def fill() -> FrameType:
        inputs = torch.ones(10, 1_000)
        alive.append(weakref.ref(inputs))
        outs = [MODEL(inputs)]
        del inputs
        assert outs
        return sys._getframe()

    variables = found(fill)
    gc.collect()  # A frame and the one that called it refer to each other.
    assert alive[0]() is None
    assert variables["outs"].saved_bytes == _SAVED


def test_a_long_chain_of_nodes_is_walked_without_recursion() -> None:
    def fill() -> FrameType:
        total = torch.ones(100, requires_grad=True) * 1
        for _ in range(5_000):
            total = total * total
        return sys._getframe()

    (total,) = found(fill).values()
    assert total.held_bytes >= 5_001 * 400
    assert total.is_complete
