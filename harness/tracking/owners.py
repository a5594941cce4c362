"""Attribution of memory to parameters, buffers, gradients and optimizer state, each storage once."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.records.memory import MemoryCategory, ModuleMemoryRow
from harness.tracking.blocks import Owner

OLDER = "older than the tracked steps"
_LONGEST_WALK_NS = 500_000_000
# Of tensors without memory: sparse ones, and parameters of lazy modules.
_WITHOUT_STORAGE = (RuntimeError, ValueError)


class OwnedTensor(NamedTuple):
    """A tensor and its owner."""

    tensor: Tensor
    owner: Owner


class ParameterName(NamedTuple):
    """A parameter's module, and its name in the module; a tensor that no module has is the whole model's."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """The name as in `nn.Module.named_parameters`."""
        return f"{self.module}.{self.name}" if self.module else self.name


def parameter_names(model: nn.Module, optimizer: Optimizer) -> dict[Tensor, ParameterName]:
    """Return every parameter of the model and every other tensor of the optimizer once; a shared parameter
    belongs to the first module with it."""
    names: dict[Tensor, ParameterName] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            names.setdefault(parameter, ParameterName(path, name))
    others = [weight for group in optimizer.param_groups for weight in group["params"] if weight not in names]
    for number, weight in enumerate(others, start=1):
        names[weight] = ParameterName("", f"tensor {number} of the optimizer")
    return names


def owned_tensors(
    model: nn.Module, optimizer: Optimizer, device: torch.device | None = None
) -> Iterator[OwnedTensor]:
    """Yield parameters, buffers, existing gradients, and optimizer state, without wrappers; each storage
    once. With `device`, those on it: other parts of a model, or an optimizer's state, may be elsewhere."""
    reported: set[int] = set()
    for tensor, owner in without_wrappers(_owned(model, optimizer)):
        if device is not None and not is_same(tensor.device, device):
            continue
        address = storage_id(tensor)
        if address is not None and address not in reported:
            reported.add(address)
            yield OwnedTensor(tensor, owner)


def without_wrappers(owned: Iterable[OwnedTensor]) -> Iterator[OwnedTensor]:
    """Yield the tensors with memory of their own: instead of a wrapper those inside it, with its owner."""
    for tensor, owner in owned:
        for part in parts_of(tensor):
            yield OwnedTensor(part, owner)


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold the memory of `tensor`: itself, or those inside a wrapper. A wrapper has a
    size and no memory: a DTensor (FSDP2, tensor parallelism) has the size of all processes' parts and holds
    that of this one, a quantized tensor its values and scales."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        inner = getattr(tensor, name)
        if isinstance(inner, Tensor):
            yield from parts_of(inner)


def is_same(one: torch.device, other: torch.device) -> bool:
    """Return whether both are one device; a device without an index is any of its type."""
    return one.type == other.type and (None in (one.index, other.index) or one.index == other.index)


def _owned(model: nn.Module, optimizer: Optimizer) -> Iterator[OwnedTensor]:
    names = parameter_names(model, optimizer)
    for parameter, name in names.items():
        yield OwnedTensor(parameter, Owner(MemoryCategory.WEIGHTS, name.module, name.path))
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            full = f"{path}.{name}" if path else name
            yield OwnedTensor(buffer, Owner(MemoryCategory.BUFFERS, path, full))
    yield from gradients(names)
    for holder, state in optimizer.state.items():
        yield from _state(state, names.get(holder))


def gradients(names: Mapping[Tensor, ParameterName]) -> Iterator[OwnedTensor]:
    """Yield the existing gradients."""
    for parameter, name in names.items():
        gradient = parameter.grad
        if gradient is not None:
            owner = Owner(MemoryCategory.GRADIENTS, name.module, f"gradient of {name.path}")
            yield OwnedTensor(gradient, owner)


def _state(state: Mapping[str, Any], name: ParameterName | None) -> Iterator[OwnedTensor]:
    module = None if name is None else name.module
    for kind, value in state.items():
        if isinstance(value, Tensor):
            of = "a parameter" if name is None else name.path
            yield OwnedTensor(value, Owner(MemoryCategory.OPTIMIZER, module, f"{kind} of {of}"))


def storage_id(tensor: Tensor) -> int | None:
    """Return an id that all views of one storage share; None without a storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except _WITHOUT_STORAGE:
        return None


def storage_bytes(tensor: Tensor) -> int:
    """Return the size of the whole storage of `tensor`."""
    return int(tensor.untyped_storage().nbytes())


def address_of(tensor: Tensor) -> int | None:
    """Return the address of the storage of `tensor`; None without one, as of an output of a CUDA graph of
    torch.compile that a later run has overwritten."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except _WITHOUT_STORAGE:
        return None


class OwnedSize(NamedTuple):
    """An owner, the bytes of its storage, and their device."""

    owner: Owner
    size_bytes: int
    device: torch.device


def sizes(model: nn.Module, optimizer: Optimizer) -> list[OwnedSize]:
    """Return the sizes of all `owned_tensors`."""
    owned = owned_tensors(model, optimizer)
    return [OwnedSize(owner, storage_bytes(tensor), tensor.device) for tensor, owner in owned]


def divide(sized: Iterable[OwnedSize], device: torch.device) -> tuple[list[OwnedSize], dict[str, int]]:
    """Return the sizes on `device`, and the bytes on each other device, such as "cpu" or "cuda:1". Tensors of
    the device "meta" have no memory."""
    here: list[OwnedSize] = []
    elsewhere_bytes: dict[str, int] = {}
    for one in sized:
        if is_same(one.device, device):
            here.append(one)
        elif one.device.type != "meta":
            name = str(one.device)
            elsewhere_bytes[name] = elsewhere_bytes.get(name, 0) + one.size_bytes
    return here, elsewhere_bytes


def module_memory_rows(
    snapshot_id: int,
    model: nn.Module,
    sized: Iterable[OwnedSize],
    activation_bytes: Mapping[str, int] | None = None,
) -> list[ModuleMemoryRow]:
    """Return the memory of every module without its children. Gradients are None if there are none at all, as
    between two steps with `set_to_none`."""
    bytes_by_owner: dict[tuple[str | None, MemoryCategory], int] = {}
    for owner, size_bytes, _ in sized:
        key = (owner.module, owner.category)
        bytes_by_owner[key] = bytes_by_owner.get(key, 0) + size_bytes
    has_gradients = any(category is MemoryCategory.GRADIENTS for _, category in bytes_by_owner)
    return [
        ModuleMemoryRow(
            snapshot_id,
            path,
            type(module).__name__,
            bytes_by_owner.get((path, MemoryCategory.WEIGHTS), 0),
            bytes_by_owner.get((path, MemoryCategory.BUFFERS), 0),
            bytes_by_owner.get((path, MemoryCategory.GRADIENTS), 0) if has_gradients else None,
            bytes_by_owner.get((path, MemoryCategory.OPTIMIZER), 0),
            None if activation_bytes is None else activation_bytes.get(path, 0),
        )
        for path, module in model.named_modules()
    ]


def other_tensors(
    device_type: str, addresses: set[int], cpu_ns: Callable[[], int] = time.thread_time_ns
) -> list[OwnedTensor]:
    """Return tensors on the device that the garbage collector tracks and whose storage is not in `addresses`,
    named by shape and type. The walk, about 0.1 s for a million objects, ends after half a second of the
    thread's processor time."""
    reported = set(addresses)
    others = []
    is_tensor: dict[type, bool] = {}
    give_up_ns = cpu_ns() + _LONGEST_WALK_NS
    for number, thing in enumerate(gc.get_objects()):
        kind = type(thing)
        if kind not in is_tensor:
            is_tensor[kind] = issubclass(kind, Tensor)
        if number % 10_000 == 0 and cpu_ns() > give_up_ns:
            break
        if not is_tensor[kind] or not _is_on(thing, device_type):
            continue
        address = storage_id(thing)
        if address is not None and address not in reported:
            reported.add(address)
            name = f"{str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}, {OLDER}"
            others.append(OwnedTensor(thing, Owner(MemoryCategory.UNKNOWN, None, name)))
    return others


def _is_on(tensor: Tensor, device_type: str) -> bool:
    """Return whether its memory is on the device. A fake tensor, as torch.compile keeps them, and a wrapper
    name a device and have no memory there."""
    if hasattr(tensor, "__tensor_flatten__"):
        return False
    try:
        return tensor.device.type == device_type == tensor.untyped_storage().device.type
    except _WITHOUT_STORAGE:
        return False


def tensors_in(value: object, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in an object's attributes, lists, tuples and dicts, up to `depth` levels."""
    if isinstance(value, Tensor):
        yield value
    elif depth > 0 and isinstance(value, list | tuple | set):
        for item in list(value)[:10_000]:
            yield from tensors_in(item, depth - 1)
    elif isinstance(base := getattr(value, "base", None), Tensor):  # A NumPy array of a tensor.
        yield base
    elif depth > 0:
        inside = value.values() if isinstance(value, dict) else getattr(value, "__dict__", {}).values()
        for item in list(inside)[:10_000]:
            yield from tensors_in(item, depth - 1)
