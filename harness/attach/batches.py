"""Sizes of a script's batches of any structure."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

_DEEPEST = 4
# A dimension of one element says nothing about batches of one sample.
_LEAST_TELLING = 2
_TOKEN_TYPES = (torch.int64, torch.int32)
# In place of a dimension: the samples are the tensors of a list, as where they have sizes of their own.
_OF_LIST = -2


class Rows(NamedTuple):
    """Consecutive rows of a tensor: its id, the first row, and the one after the last."""

    tensor_id: int
    first: int
    end: int

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.end - self.first

    def follow(self, before: "Rows | None") -> bool:
        """Return whether these are the rows after those `before`. After a single one they may as well be
        the next time step."""
        if before is None or before.size < _LEAST_TELLING:
            return False
        return self.tensor_id == before.tensor_id and self.first == before.end


def first_tensor(batch: Any, depth: int = 0) -> Tensor | None:
    """Return the first tensor with a dimension in nested sequences and mappings; None without one. Of a
    packed sequence it is the first time step, the only one that all samples have."""
    if isinstance(batch, Tensor):
        return batch if batch.dim() else None
    if isinstance(batch, PackedSequence):
        return batch.data[: int(batch.batch_sizes[0])]
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


def samples_of(batch: Any, axis: int = 0) -> int | None:
    """Return the size of the dimension `axis` of the first tensor, of the first one where it has no such;
    None without a tensor. `axis` is of `batch_axis`."""
    if axis == _OF_LIST:
        return len(_first_tensors(batch))
    if (images := _images_of(batch)) is not None:
        return images
    first = first_tensor(batch)
    # A nested tensor has sizes of single dimensions, but no shape.
    return None if first is None else int(first.size(axis if axis < first.dim() else 0))


def batch_axis(batch: Any, batch_size: int | None) -> int:
    """Return the dimension of the first tensor that counts the samples: the second one, as in (sequence,
    batch), where that alone is of `batch_size`, which the loader has; else the first one. Negative: it is
    one of so many tensors of a list."""
    first = first_tensor(batch)
    if first is None or batch_size is None or batch_size < _LEAST_TELLING:
        return 0
    if first.is_nested or first.shape[0] == batch_size:
        return 0
    if first.dim() > 1 and first.shape[1] == batch_size:
        return 1
    tensors = _first_tensors(batch)
    are_alike = all((one.dim(), one.dtype) == (first.dim(), first.dtype) for one in tensors)
    return _OF_LIST if are_alike and len(tensors) == batch_size else 0


def _first_tensors(batch: Any) -> Sequence[Tensor]:
    """Return the sequence that has the first tensor, if all else in it are tensors too."""
    for _ in range(_DEEPEST):
        items = list(batch.values()) if isinstance(batch, Mapping) else batch
        if not isinstance(items, Sequence) or isinstance(items, str | bytes | PackedSequence):
            break
        batch = next((item for item in items if first_tensor(item) is not None), None)
        if isinstance(batch, Tensor):
            return items if all(isinstance(item, Tensor) for item in items) else ()
    return ()


def _images_of(batch: Any) -> int | None:
    """Return the number of images where a batch is a list of them, (channels, height, width), and a list with
    the targets of each, as for the detectors of torchvision; else None."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return None
    images, targets = batch
    if not (isinstance(images, tuple | list) and isinstance(targets, tuple | list)):
        return None
    are_pairs = 0 < len(images) == len(targets) and all(isinstance(one, Mapping) for one in targets)
    are_images = are_pairs and all(isinstance(one, Tensor) and one.dim() == 3 for one in images)
    return len(images) if are_images else None


def is_vector_of_floats(tensor: Tensor | None) -> bool:
    """Return whether a tensor may as well be one sample, such as a state in reinforcement learning."""
    return tensor is not None and tensor.dim() == 1 and tensor.dtype.is_floating_point


def tokens_of(inputs: Any) -> int | None:
    """Return the number of token ids, if the first tensor is a (batch, sequence) of integers, else None. A
    sequence has at least two: one integer per sample may as well be a category."""
    return _tokens_in(first_tensor(inputs))


def sizes_of(inputs: Any) -> tuple[int | None, int | None]:
    """Return the samples and the tokens of a model's inputs, see `samples_of` and `tokens_of`. The
    samples of a vector of floats are unknown, see `is_vector_of_floats`."""
    tensor = inputs[0] if type(inputs) is tuple and inputs else None
    # Nearly always, so without a further call.
    if type(tensor) is Tensor and not tensor.is_nested and (shape := tensor.shape):
        if len(inputs) > 1 and _is_sequence_first(tensor, inputs[1]):
            return shape[1], _tokens_in(tensor, sequence_axis=0)
        if len(shape) == 3 and len(inputs) > 1 and _is_state(tensor, inputs[1]):
            tensor = inputs[1]
        elif len(shape) == 1:
            return _sizes_beside(tensor, inputs)
        elif len(shape) != 2 or tensor.dtype.is_floating_point:
            return shape[0], None
    else:
        if (images := _images_of(inputs)) is not None:
            return images, None
        tensor = first_tensor(inputs)
        if tensor is not None and tensor.dim() == 1:
            is_batch = type(inputs) is tuple and len(inputs) == 1 and isinstance(inputs[0], Mapping)
            return _sizes_beside(tensor, inputs[0].values() if is_batch else inputs)
    return None if tensor is None else int(tensor.size(0)), _tokens_in(tensor)


def _sizes_beside(vector: Tensor, inputs: Any) -> tuple[int | None, int | None]:
    """Return the samples and the tokens where the first of the `inputs` is `vector`, as with the labels that
    collators of Hugging Face put before the token ids. A vector of floats may be one sample without them."""
    samples = len(vector)
    for other in inputs:
        are_ids = type(other) is Tensor and not other.is_nested and other.dtype in _TOKEN_TYPES
        if are_ids and other.dim() == 2 and len(other) == samples:
            return samples, _tokens_in(other)
    return None if vector.is_floating_point() else samples, None


def rows_of(inputs: Any) -> Rows | None:
    """Return which rows of another tensor a model's first input is, as `rays[i : i + 1024]`, or of one with
    further dimensions before the last ones, as `points.reshape(-1, 3)`. None: it is a tensor of its own, or
    a whole element, as a time step of a sequence."""
    tensor = inputs[0] if type(inputs) is tuple and inputs else None
    if type(tensor) is not Tensor or (whole := tensor._base) is None or whole.is_nested:
        return None
    if tensor.layout is not torch.strided or whole.layout is not torch.strided:
        return None
    flattened = whole.dim() - tensor.dim()
    if not tensor.dim() or flattened < 0 or tensor.shape[1:] != whole.shape[1 + flattened :]:
        return None
    if (strides := tensor.stride()) != whole.stride()[flattened:] or not strides[0]:
        return None
    first = (tensor.storage_offset() - whole.storage_offset()) // strides[0]
    if flattened:
        size = prod(whole.shape[1 : 1 + flattened])
        if not whole.is_contiguous() or len(tensor) == size:
            return None
    return Rows(id(whole), first, first + tensor.shape[0])


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written in place; 0 for one that does not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _is_state(first: Tensor, second: Any) -> bool:
    """Return whether `first` is a hidden state, (layers, batch, features), and `second` the batch, (batch,
    sequence, features), or (batch, sequence) of token ids. Where `first` is (batch, sequence, features), a
    square mask and an embedding of positions begin with the sequence too; neither is a batch."""
    if type(second) is not Tensor or second.is_nested or not first.is_floating_point():
        return False
    is_batch = second.dim() == 3 or (second.dim() == 2 and second.dtype in _TOKEN_TYPES)
    return is_batch and first.shape[0] != first.shape[1] == second.shape[0] != second.shape[1]


def _is_sequence_first(first: Tensor, second: Any) -> bool:
    """Return whether `first` is (sequence, batch) of token ids, or (sequence, batch, features), because
    `second` is the hidden state of recurrent layers, (layers, batch, features), or has some, or has the
    length of each sequence; or, of token ids, is a mask of the positions, (sequence, sequence). A tensor with
    one layer and the features of `first` may as well be an embedding of positions, and one with two equal
    dimensions a mask."""
    has_tokens = first.dim() == 2 and not first.is_floating_point()
    if not has_tokens and first.dim() != 3:
        return False
    if has_tokens and type(second) is Tensor and second.dim() == 2 and not second.is_nested:
        is_mask = second.is_floating_point() or second.dtype is torch.bool
        return is_mask and first.shape[1] != first.shape[0] == second.shape[0] == second.shape[1]
    if type(second) is Tensor and second.dim() == 1:
        return first.shape[0] != first.shape[1] == second.shape[0] and _are_lengths(second)
    state = first_tensor(second)
    if state is None or state.is_nested or state.dim() != 3 or not state.is_floating_point():
        return False
    may_be_positions = not has_tokens and state.shape[0] == 1 and state.shape[2] == first.shape[2]
    if state is second and (may_be_positions or state.shape[1] == state.shape[2]):
        return False
    return first.shape[0] != first.shape[1] == state.shape[1] and state.shape[0] != first.shape[0]


def _are_lengths(numbers: Tensor) -> bool:
    """Return whether `numbers` may be the lengths of sequences, and are no positions, which begin at 0. Those
    of `pack_padded_sequence` are on the CPU; on a device it would wait for them."""
    if numbers.is_floating_point() or not numbers.is_cpu or not len(numbers):
        return False
    try:
        return int(numbers[0]) > 0
    except RuntimeError:  # Within torch.vmap.
        return False


def _tokens_in(tensor: Tensor | None, sequence_axis: int = 1) -> int | None:
    if tensor is None or tensor.dim() != 2 or tensor.is_floating_point() or tensor.is_complex():
        return None
    # The rows of a nested tensor have lengths of their own.
    if not tensor.is_nested and tensor.size(sequence_axis) == 1:
        return None
    return int(tensor.numel())


def samples_of_first_step(early: Sequence[int], loaded: int, called: int) -> int:
    """Return the samples of a script's first step: batches of `early` ones, the newest first, were loaded
    before it, `loaded` ones in it. Those are of the next step if the models were called with fewer than they
    and the newest batch before together, `called`. Further batches before it are of the step as long as all
    are no more than `called`: a script may load those of a step at once, or only inspect one."""
    samples = early[0] + loaded
    if loaded and samples > called:
        return loaded
    for further in early[1:]:
        if samples + further > called:
            break
        samples += further
    return samples
