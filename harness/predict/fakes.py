"""Fake tensors, which have a shape and no memory, where torch's own do not suffice for training steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
# Checks of values, and their results where nothing is wrong.
_CHECKS = {
    _aten.any.default: False,
    _aten.all.default: True,
    _aten.isnan.default: False,
    _aten.isinf.default: False,
}
_NEGATIONS = {_aten.logical_not.default, _aten.bitwise_not.default}
# Whether a number equals itself, and infinity: torch composes `isnan`, `isinf` and `isfinite` of these.
_COMPARISONS = {_aten.eq.Tensor: True, _aten.eq.Scalar: True, _aten.ne.Tensor: False, _aten.ne.Scalar: False}

# `areAnyTensorSubclassLike` in `torch/csrc/autograd/FunctionsManual.cpp` and `aten/src/ATen/native`.
_IN_PLACE = {
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_put.default: _aten.index_put_.default,
}


class _TracingMode(FakeTensorMode):
    """A mode that is its own copy. A copy of a fake weight, which a module makes that copies its layer, as
    TransformerEncoder does, would copy its weak references too, and both would free them, which ends the
    process."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_TracingMode":
        return self


@cache
def tracing_mode() -> FakeTensorMode:
    """Return the mode of all traces of this process. A person's own code may keep a tensor from one trace to
    the next, which another mode would refuse; real ones are those that its modules made."""
    # With a first backward pass under such a mode, CUDA builds of torch (seen with 2.14 and 2.15) compute no
    # gradients in a forked process, such as the one that measures kernels.
    torch.ones(1, requires_grad=True).sum().backward()
    return _TracingMode(allow_non_fake_inputs=True)


@contextmanager
def swapping_weights() -> Iterator[None]:
    """Have `Module.to`, `double` and the like exchange fake weights. They call `swap_tensors`, which refuses
    a tensor with a weak reference, and a memo of torch has one to each fake parameter."""
    utilities: Any = torch.utils
    weak_references = utilities.weakref
    utilities.weakref = SimpleNamespace(getweakrefs=lambda _: [])
    try:
        yield
    finally:
        utilities.weakref = weak_references


def in_place(function: OpOverload) -> OpOverload:
    """Return the operator that autograd runs for real tensors instead of `function` in a backward pass. For
    tensors that are traced it writes into no tensor of zeros, but into a copy."""
    return _IN_PLACE.get(function, function)


def mark_check(function: OpOverload, args: Sequence[Any], result: Any) -> None:
    """Note on a result whether it is a check of values, such as `torch.isnan(loss).any()`, and its value."""
    value: bool | None = None
    if function in _CHECKS:
        value = value_of_check(args[0])
        value = _CHECKS[function] if value is None else value
    elif function in _NEGATIONS:
        value = value_of_check(args[0])
        value = None if value is None else not value
    elif function in _COMPARISONS and args[0] is args[1]:
        value = _COMPARISONS[function]
    elif function in _COMPARISONS and isinstance(args[1], float) and args[1] == inf:
        value = not _COMPARISONS[function]
    elif function is _aten.mul.Tensor and result.dtype is torch.bool:
        both = [value_of_check(factor) for factor in args]
        value = None if None in both else all(both)
    if value is not None:
        result.value_of_check = value


def value_of_check(tensor: object) -> bool | None:
    """Return the value of a check in a run in which nothing is wrong; None for other tensors."""
    return getattr(tensor, "value_of_check", None)


def _ctc_loss(
    logarithms: Tensor, targets: Tensor, input_lengths: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    """Return the losses and the table for backward, as for targets of full length."""
    batch = len(input_lengths)
    longest = targets.shape[1] if targets.dim() == 2 else -(-len(targets) // max(1, batch))
    return logarithms.new_empty(batch), logarithms.new_empty(batch, len(logarithms), 2 * longest + 1)


# Results, at their largest, of operators for which the shape depends on values.
LARGEST_RESULTS: Mapping[OpOverload, Callable[..., Any]] = {
    _aten._ctc_loss.Tensor: _ctc_loss,
}
