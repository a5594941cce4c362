"""The number of batches that a script reads as `len(loader)`, where their size has changed."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from harness.attach.loader_values import batches_of, drops_last, is_iterable, samples_in
from harness.attach.passes import LoaderPass
from harness.attach.places import Place, is_after, place_in_script


class _EndedPass(NamedTuple):
    """The newest pass over a loader, at its end. `batches` is the number of its batches, None where that is
    torch's own."""

    opened_at: Place
    batches: int | None


class LoaderLengths:
    """The lengths of a script's loaders."""

    def __init__(self) -> None:
        self._ended: WeakKeyDictionary[DataLoader[Any], _EndedPass] = WeakKeyDictionary()

    def opened(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        """A pass over a loader begins."""
        self._ended.pop(loader, None)
        batches.opened_at = place_in_script()

    def ended(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        """A pass over a loader has ended."""
        self._ended[loader] = _EndedPass(batches.opened_at, _length_of(batches, loader))

    def read(self, loader: DataLoader[Any], newest: LoaderPass | None, size: int | None) -> int | None:
        """Return the number of batches in the epoch under way, in the ended one where the script reads it
        after the loop, as for the average of a loss, else in the next one; None: torch's own. `newest` is the
        pass that fed the newest step, and `size` the changed batch size of `loader`, if any."""
        if is_iterable(loader) or (samples := samples_in(loader)) is None:
            return None
        if newest is not None and newest.loader is loader and not newest.is_over:
            return _length_of(newest, loader)
        ended = self._ended.get(loader)
        if size is None and (ended is None or ended.batches is None):
            return None
        if ended is not None and is_after(place_in_script(), ended.opened_at):
            return ended.batches
        return None if size is None else batches_of(samples, size, drop_last=drops_last(loader))


def full_length(loader: DataLoader[Any], size: int | None) -> int | None:
    """Return the number of batches in a pass over a loader with batches of `size`; None: unknown."""
    samples = None if is_iterable(loader) else samples_in(loader)
    return None if samples is None or not size else batches_of(samples, size, drop_last=drops_last(loader))


def _length_of(batches: LoaderPass, loader: DataLoader[Any]) -> int | None:
    """Return the number of batches in the epoch of a pass; None: torch's own."""
    if not batches.has_other_batches(loader) or (samples := samples_in(loader)) is None:
        return None
    return batches.length(samples, drop_last=drops_last(loader))
