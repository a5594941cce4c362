"""Follows storages from birth to death, on real tensors and under `FakeTensorMode` alike."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

Key = TypeVar("Key")


class _Followed(NamedTuple, Generic[Key]):
    reference: "weakref.ref[UntypedStorage]"
    size_bytes: int
    key: Key


class StorageWatch(TorchDispatchMode, Generic[Key]):
    """While entered (`with watch:`), tells of each storage that an operator makes, and of its death.

    `born(storage, size_bytes, function)` is called right after the operator `function` made `storage`, on
    the thread that ran it, and returns a key of its own choice. It must not keep the storage. `died(key)` is
    called when the storage is freed, on whichever thread frees it; also after the watch was left, until
    `forget`.

    A storage is told of once, however many tensors look into it: views and in-place operators make none,
    and an operator that returns one of its inputs makes none either. One that is resized dies and is born
    again with its new size when an operator next returns it. Storages older than the watch are not followed
    unless `adopt` is told of them. Tensors without a storage of their own (sparse, opaque) and empty
    storages are passed over. What a kernel allocates and frees within itself is never seen.
    """

    def __init__(
        self, born: Callable[[UntypedStorage, int, OpOverload | None], Key], died: Callable[[Key], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self._born = born
        self._died = died
        self._followed: dict[int, _Followed[Key]] = {}

    def adopt(self, tensor: Tensor) -> Key | None:
        """Follow the storage of `tensor`, which is older than the watch: `born` is called with no function,
        unless it is followed already. Returns its key; None for a tensor without a storage."""
        storage = _storage(tensor)
        if storage is None:
            return None
        known = self._known(storage)
        return self._follow(storage, None) if known is None else known.key

    def key_of(self, tensor: Tensor) -> Key | None:
        """The key of the storage that `tensor` looks into; None when it is not followed."""
        storage = _storage(tensor)
        known = None if storage is None else self._known(storage)
        return None if known is None else known.key

    def forget(self) -> None:
        """Follow nothing any more: `died` is not called for what lives now."""
        self._followed.clear()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, then look at what it returned."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            storage = _storage(tensor)
            if storage is not None:
                self._look(storage, func, args, kwargs)
        return result

    def _look(
        self, storage: UntypedStorage, function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        known = self._known(storage)
        if known is not None:
            if known.size_bytes != storage.nbytes():
                self._dead(storage._cdata)
                self._follow(storage, function)
        elif not _is_among(storage, args, kwargs):
            self._follow(storage, function)

    def _known(self, storage: UntypedStorage) -> _Followed[Key] | None:
        known = self._followed.get(storage._cdata)
        return known if known is not None and known.reference() is storage else None

    def _follow(self, storage: UntypedStorage, function: OpOverload | None) -> Key | None:
        size_bytes, address = storage.nbytes(), storage._cdata
        if size_bytes == 0:
            return None
        key = self._born(storage, size_bytes, function)
        reference = weakref.ref(storage, lambda _: self._dead(address))
        self._followed[address] = _Followed(reference, size_bytes, key)
        return key

    def _dead(self, address: int) -> None:
        followed = self._followed.pop(address, None)
        if followed is not None:
            self._died(followed.key)


def _storage(tensor: Tensor) -> UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # What such a tensor raises is a kind of it.
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what an operator takes or returns: one, or sequences of them, nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _is_among(storage: UntypedStorage, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(_storage(tensor) is storage for tensor in _tensors((*args, *kwargs.values())))
