"""The values of a loader that can change live, and what its batches are made from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset

from harness.attach.indices import is_grouped

DEFAULT_PREFETCH = 2


class LoaderValues(NamedTuple):
    """The attributes of a loader that can change live. `batch_size` is None where the script's own code makes
    the batches."""

    batch_size: int | None
    pin_memory: bool
    num_workers: int
    prefetch_factor: int

    @property
    def most_sent(self) -> int:
        """The most batches that are loaded in advance, and the one before them."""
        return self.num_workers * self.prefetch_factor + 1


def values_of(loader: DataLoader[Any]) -> LoaderValues:
    """Return the script's own values."""
    sampler: Any = loader.batch_sampler
    size = int(sampler.batch_size) if is_grouped(sampler) else None
    prefetch = loader.prefetch_factor or DEFAULT_PREFETCH
    return LoaderValues(size, bool(loader.pin_memory), int(loader.num_workers), int(prefetch))


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler that an iterator of torch's draws from: of batches, or without them of samples."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def batches_of(samples: int, size: int, *, drop_last: bool) -> int:
    """Return the number of batches that `samples` make."""
    return samples // size if drop_last else -(-samples // size)


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Return whether the loader's dataset has no indices."""
    return isinstance(loader.dataset, IterableDataset)


def samples_in(loader: DataLoader[Any]) -> int | None:
    """Return the number of samples in an epoch; None: its sampler has no length."""
    grouping: Any = loader.batch_sampler
    try:
        return len(grouping.sampler if is_grouped(grouping) else loader.sampler)  # type: ignore[arg-type]  # or it raises TypeError
    except (TypeError, RuntimeError):  # Of no __len__, or of one that is left open.
        return None


def drops_last(loader: DataLoader[Any]) -> bool:
    """Return whether incomplete batches are dropped, by the loader or by a BatchSampler that it was given."""
    grouping: Any = loader.batch_sampler
    return bool(grouping.drop_last if is_grouped(grouping) else loader.drop_last)


@contextmanager
def standing_in(loader: DataLoader[Any], attributes: dict[str, Any]) -> Iterator[None]:
    """Give the loader other attributes for a moment; torch itself forbids to set some of them."""
    own = vars(loader)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        own.update(before)
