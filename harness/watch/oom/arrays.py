"""The memory behind one object: of a tensor its storage, of an array of NumPy the array that it is a view of.

Nothing here runs code that a class of the script's may define. Memory is identified by its address, so that a
tensor and an array over the same memory are one.
"""

import mmap
import sys
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.tracking.owners import is_same

# Their size has what they hold in it.
_BUFFERS: tuple[Any, ...] = (BytesIO, array)
_CONTAINERS: tuple[Any, ...] = (list, dict, set, frozenset, tuple, deque)
# Smaller containers and strings do not count: up to 512 bytes are in pools of Python's own, outside the heap.
_LEAST_CONTAINER_BYTES = _LEAST_CHARACTERS = 1 << 10

# Of tensors without memory, such as parameters of lazy modules, and of subclasses that refuse.
_WITHOUT_STORAGE = (RuntimeError, ValueError, TypeError, AttributeError)
_dict_of_type: Any = type.__dict__["__dict__"]
_bases_of_type: Any = type.__dict__["__mro__"]


class Memory(NamedTuple):
    """An address (of bytes, the id of their object) and a size in bytes."""

    key: int
    size_bytes: int


def is_kind_of(value: Any, kinds: Any) -> bool:
    """Return whether the type of `value` is one of `kinds`. As `isinstance`, without any code of a proxy."""
    return issubclass(type(value), kinds)


def is_memory(value: Any) -> bool:
    """Return whether `value` is a tensor, an array, a buffer, bytes or a long string."""
    is_buffer = is_kind_of(value, (Tensor, bytes, bytearray, *_BUFFERS))
    return is_buffer or is_long_string(value) or _is_array(value)


def is_long_string(value: Any) -> bool:
    """Return whether `value` is a string that is in the heap."""
    return type(value) is str and len(value) >= _LEAST_CHARACTERS


def is_table(value: Any) -> bool:
    """Return whether `value` is a data frame or a series of pandas."""
    generic = sys.modules.get("pandas.core.generic")
    return generic is not None and is_kind_of(value, generic.NDFrame)


def is_part_of_table(value: Any) -> bool:
    """Return whether `value` is a block of a data frame, or what has its blocks: their arrays are in fields
    of C, which only Python's collector sees."""
    internals = sys.modules.get("pandas._libs.internals")
    return internals is not None and is_kind_of(value, (internals.BlockManager, internals.Block))


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in its dictionary and those in slots, read by Python's own
    descriptors; empty without any."""
    slots = _slots_of(value)
    for kind in _bases_of_type.__get__(type(value)):
        descriptor = _dict_of_type.__get__(kind).get("__dict__")
        if descriptor is not None:
            own = descriptor.__get__(value) if type(descriptor) is GetSetDescriptorType else None
            if type(own) is dict:
                return {**slots, **own} if slots else own
            break
    return slots


def _slots_of(value: Any) -> dict[str, Any]:
    """Return the attributes in slots, as of a dataclass with `slots=True`; those without a value are left
    out."""
    attributes: dict[str, Any] = {}
    for kind in _bases_of_type.__get__(type(value)):
        own = _dict_of_type.__get__(kind)
        if "__slots__" not in own:  # What other types have of this kind is Python's own.
            continue
        for name, descriptor in own.items():
            if type(descriptor) is MemberDescriptorType:
                with suppress(AttributeError):
                    attributes[name] = descriptor.__get__(value)
    return attributes


def attributes_of_class(kind: Any) -> Mapping[str, Any]:
    """Return the dictionary of a class, read by Python's own descriptor."""
    own: Mapping[str, Any] = _dict_of_type.__get__(kind)
    return own


def memory_of(value: Any, device: torch.device) -> Memory | None:
    """Return the memory of a tensor, an array, a buffer, bytes or a string; None if it has none on this
    device, or maps a file. Call it under `torch._C.DisableTorchFunctionSubclass`."""
    if is_kind_of(value, Tensor):
        return _of_tensor(value, device)
    if device.type != "cpu":
        return None
    for kind in (*_BUFFERS, str):
        if is_kind_of(value, kind):
            return Memory(id(value), kind.__sizeof__(value))
    return _of_array(value) if _is_array(value) else Memory(id(value), len(value))


def memory_of_container(value: Any, device: torch.device) -> Memory | None:
    """Return what a list, a dictionary or the like takes in the heap by itself, without what it holds: of
    many numbers in lists it is a fourth of their memory. None for others, and on other devices."""
    if device.type != "cpu":
        return None
    for kind in _CONTAINERS:
        if is_kind_of(value, kind):
            size_bytes = kind.__sizeof__(value)
            return Memory(id(value), size_bytes) if size_bytes >= _LEAST_CONTAINER_BYTES else None
    return None


def _of_tensor(tensor: Tensor, device: torch.device) -> Memory | None:
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        # A wrapper around other tensors has a size and no address, a fake tensor another device.
        if not address or not is_same(storage.device, device):
            return None
        return Memory(address, int(storage.nbytes()))
    except _WITHOUT_STORAGE:
        return None


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and is_kind_of(value, numpy.ndarray)


def _of_array(array: Any) -> Memory | None:
    kind: Any = sys.modules["numpy"].ndarray
    base = array
    while (below := kind.base.__get__(base)) is not None and _is_array(below):
        base = below
    if is_kind_of(below, mmap.mmap):
        return None
    if is_kind_of(below, (bytes, bytearray)):
        return Memory(id(below), len(below))
    # Of windows that overlap, as of `sliding_window_view`, the memory that they span.
    shape, strides = kind.shape.__get__(base), kind.strides.__get__(base)
    if 0 in shape:
        return None
    steps = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    address = kind.__array_interface__.__get__(base)["data"][0] + sum(min(step, 0) for step in steps)
    return Memory(address, kind.itemsize.__get__(base) + sum(map(abs, steps)))
