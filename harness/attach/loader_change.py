"""A change of a loader's settings, which another loader that the script makes later may take over."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from torch.utils.data import DataLoader, SequentialSampler

from harness.attach.loader_values import LoaderValues, drops_last, samples_in, values_of


class LoaderChange(NamedTuple):
    """A change of a loader's settings: the script's `own` values, those that are `changed`, the `dataset`
    (None once it exists no longer), the kind of `sampler`, the id of the function that makes the batches (it
    may be a method of an object that is not to be kept), and whether incomplete ones are dropped."""

    own: LoaderValues
    changed: dict[str, Any]
    dataset: Callable[[], Any]
    sampler: type
    collate_id: int
    drops_last: bool

    @classmethod
    def of(cls, loader: DataLoader[Any], changed: dict[str, Any]) -> "LoaderChange":
        """Return that of `changed` values of `loader`."""
        dataset = loader.dataset
        try:
            reference: Callable[[], Any] = ref(dataset)
        except TypeError:  # A list has no weak references, and is not to be kept.
            reference = _nothing
        own, kind = values_of(loader), type(loader.sampler)
        return cls(own, changed, reference, kind, id(loader.collate_fn), drops_last(loader))

    def is_for_successor(self, loader: DataLoader[Any]) -> bool:
        """Return whether `loader` takes the place of the one that was changed: it is alike in every respect,
        draws its samples in an order of its own, as only a loader for training does, and still has a batch
        with the changed size."""
        if type(loader.sampler) is not self.sampler or self.sampler is SequentialSampler:
            return False
        if loader.dataset is not self.dataset() or values_of(loader) != self.own:
            return False
        if id(loader.collate_fn) != self.collate_id or drops_last(loader) is not self.drops_last:
            return False
        samples = samples_in(loader)
        return not drops_last(loader) or samples is None or self.changed.get("batch_size", 0) <= samples


def _nothing() -> None:
    return None
