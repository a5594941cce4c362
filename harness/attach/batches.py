"""Sizes of a script's batches, whatever structure they have."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

_DEEPEST = 4
_PLAIN = (tuple, list)


def first_tensor(batch: Any, depth: int = 0) -> Tensor | None:
    """Return the first tensor with a dimension in nested sequences and mappings; None without one."""
    if isinstance(batch, Tensor):
        return batch if batch.dim() else None
    if depth == _DEEPEST:
        return None
    items: Any = ()
    if isinstance(batch, Mapping):
        items = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        items = batch
    for item in items:
        if (tensor := first_tensor(item, depth + 1)) is not None:
            return tensor
    return None


def samples_of(batch: Any) -> int | None:
    """Return the size of the first dimension of the first tensor; None without a tensor."""
    if type(batch) in _PLAIN and batch and type(tensor := batch[0]) is Tensor and (shape := tensor.shape):
        return shape[0]  # Nearly always, so without a further call.
    first = first_tensor(batch)
    return None if first is None else int(first.shape[0])


def tokens_of(inputs: Any) -> int | None:
    """Return the number of token ids, if the first tensor is a (batch, sequence) of integers, else None."""
    return _tokens_in(first_tensor(inputs))


def sizes_of(inputs: Any) -> tuple[int | None, int | None]:
    """Return the samples and the tokens of a model's inputs, see `samples_of` and `tokens_of`."""
    tensor = inputs[0] if type(inputs) is tuple and inputs else None
    if type(tensor) is Tensor and (shape := tensor.shape):  # Nearly always, so without a further call.
        if len(shape) != 2 or tensor.dtype.is_floating_point:
            return shape[0], None
    else:
        tensor = first_tensor(inputs)
    return None if tensor is None else int(tensor.shape[0]), _tokens_in(tensor)


def _tokens_in(tensor: Tensor | None) -> int | None:
    if tensor is None or tensor.dim() != 2 or tensor.is_floating_point() or tensor.is_complex():
        return None
    return int(tensor.numel())
