"""The batches that a script loads only to inspect them, as by `next(iter(loader))` before an epoch."""

from typing import Any
from weakref import ReferenceType, ref

from harness.attach.passes import LoaderPass


class InspectedBatches:
    """Finds the batches of the step under way that were inspected.

    They came before a loader was opened whose iterator the script keeps, and the script has let go of their
    own iterators before the end. A script that takes several batches for a step by `next(iter(loader))` keeps
    none of its iterators.

    Attributes:
        fresh: the passes that delivered batches since a loader was opened, and have fed no step yet.
        is_used: whether a batch of the step came from a pass that has fed a step, or was its last one.
        samples, wait_ns: of all batches of the step before a loader was opened.
    """

    def __init__(self) -> None:
        self.fresh: list[ReferenceType[LoaderPass]] = []
        self.is_used = False
        self.samples = self.wait_ns = 0
        self._iterators: list[ReferenceType[Any]] = []

    def arrived(self, batches: LoaderPass) -> None:
        """A pass that has fed no step delivered a batch."""
        self.fresh.append(ref(batches))

    def loader_opened(self, samples: int | None, wait_ns: int) -> None:
        """A loader is opened; so far the step has `samples`, for which it waited `wait_ns`."""
        passes = [reference() for reference in self.fresh]
        self.fresh.clear()
        for batches in passes:
            if batches is None or batches.is_over:
                self.is_used = True
            else:
                self._iterators.append(batches.iterator)
        self.samples, self.wait_ns = samples or 0, wait_ns

    def take(self) -> bool:
        """Return whether `samples` and `wait_ns` are of batches that were inspected, as the step uses its
        batches, and begin anew."""
        newest = self.fresh[-1]() if self.fresh else None
        is_kept = newest is not None and newest.iterator() is not None
        are_left = bool(self._iterators) and all(iterator() is None for iterator in self._iterators)
        are_inspected = is_kept and are_left and not self.is_used
        self.fresh.clear()
        self._iterators.clear()
        self.is_used = False
        return are_inspected
