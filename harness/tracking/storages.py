"""Tracks storages from allocation to free, for real tensors and under `FakeTensorMode`."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

Key = TypeVar("Key")


class _TrackedStorage(NamedTuple, Generic[Key]):
    reference: "weakref.ref[UntypedStorage]"
    size_bytes: int
    key: Key


class StorageWatch(TorchDispatchMode, Generic[Key]):
    """While entered (`with watch:`), reports each storage that an operator creates, and its free.

    `born(storage, size_bytes, function)` is called right after the operator `function` created `storage`, on
    the same thread, and returns a key. It must not retain the storage. `died(key)` is called when the storage
    is freed, on the thread that frees it; also after the watch was left, until `forget`.

    A storage is reported once for any number of views: views and in-place operators create none, and neither
    does an operator that returns one of its inputs. A resized storage is reported as freed, and as created
    with its new size when an operator next returns it. Storages older than the watch are tracked only after
    `adopt`. Tensors without a storage (sparse, opaque) and empty storages are ignored. Allocations within a
    kernel are not visible.
    """

    def __init__(
        self, born: Callable[[UntypedStorage, int, OpOverload | None], Key], died: Callable[[Key], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self._born = born
        self._died = died
        self._records: dict[int, _TrackedStorage[Key]] = {}

    def enter_below(self) -> None:
        """Enter the watch below the modes that are on, as if it had been entered before them: each mode that
        ends takes the topmost one off, and the watch goes on after they have ended."""
        with _without_modes_above(None):
            self.__enter__()  # type: ignore[no-untyped-call]  # torch has not typed it

    def leave_below(self) -> None:
        """Leave the watch, which may have been entered below modes that are still on: they stay on."""
        with _without_modes_above(self):
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch has not typed it

    def adopt(self, tensor: Tensor) -> Key | None:
        """Track the storage of `tensor`, which is older than the watch: `born` is called without a function,
        unless it is already tracked. Returns its key; None for a tensor without a storage."""
        storage = _storage(tensor)
        if storage is None:
            return None
        record = self._tracked(storage)
        return self._follow(storage, None) if record is None else record.key

    def key_of(self, tensor: Tensor) -> Key | None:
        """Return the key of the storage of `tensor`; None if it is not tracked."""
        storage = _storage(tensor)
        record = None if storage is None else self._tracked(storage)
        return None if record is None else record.key

    def forget(self) -> None:
        """Stop tracking: `died` is not called for live storages."""
        self._records.clear()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, then inspect its result."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            storage = _storage(tensor)
            if storage is not None:
                self._inspect_result(storage, func, args, kwargs)
        return result

    def _inspect_result(
        self, storage: UntypedStorage, function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        record = self._tracked(storage)
        if record is not None:
            if record.size_bytes != storage.nbytes():
                self._dead(storage._cdata)
                self._follow(storage, function)
        elif not _is_among(storage, args, kwargs):
            self._follow(storage, function)

    def _tracked(self, storage: UntypedStorage) -> _TrackedStorage[Key] | None:
        record = self._records.get(storage._cdata)
        return record if record is not None and record.reference() is storage else None

    def _follow(self, storage: UntypedStorage, function: OpOverload | None) -> Key | None:
        size_bytes, address = storage.nbytes(), storage._cdata
        if size_bytes == 0:
            return None
        key = self._born(storage, size_bytes, function)
        reference = weakref.ref(storage, lambda _: self._dead(address))
        self._records[address] = _TrackedStorage(reference, size_bytes, key)
        return key

    def _dead(self, address: int) -> None:
        record = self._records.pop(address, None)
        if record is not None:
            self._died(record.key)


@contextmanager
def _without_modes_above(lowest: TorchDispatchMode | None) -> Iterator[None]:
    """Have `lowest` on top of the stack of modes, None: an empty stack, until the end of the context. Only
    torch's own part of entering and leaving a mode is done, not that of its class."""
    above: list[Any] = []
    while (mode := _get_current_dispatch_mode()) is not None and mode is not lowest:
        TorchDispatchMode.__exit__(mode, None, None, None)
        above.append(mode)
    try:
        yield
    finally:
        for mode in reversed(above):
            TorchDispatchMode.__enter__(mode)


def _storage(tensor: Tensor) -> UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # What torch raises for such a tensor.
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operator's arguments or result, including nested sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _is_among(storage: UntypedStorage, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(_storage(tensor) is storage for tensor in _tensors((*args, *kwargs.values())))
