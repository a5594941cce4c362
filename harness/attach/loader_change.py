"""A change of a loader's settings, which another loader that the script makes later may take over."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from torch.utils.data import DataLoader

from harness.attach.passes import LoaderValues, values_of


class LoaderChange(NamedTuple):
    """A change of a loader's settings: the script's `own` values, those that are `changed`, the `dataset`
    (None once it exists no longer) and the kind of `sampler`."""

    own: LoaderValues
    changed: dict[str, Any]
    dataset: Callable[[], Any]
    sampler: type

    @classmethod
    def of(cls, loader: DataLoader[Any], changed: dict[str, Any]) -> "LoaderChange":
        """Return that of `changed` values of `loader`."""
        dataset = loader.dataset
        try:
            reference: Callable[[], Any] = ref(dataset)
        except TypeError:  # A list has no weak references, and is not to be kept.
            reference = _nothing
        return cls(values_of(loader), changed, reference, type(loader.sampler))

    def is_for_successor(self, loader: DataLoader[Any]) -> bool:
        """Return whether `loader` has the same values, dataset, and kind of sampler."""
        is_same = loader.dataset is self.dataset() and type(loader.sampler) is self.sampler
        return is_same and values_of(loader) == self.own


def _nothing() -> None:
    return None
