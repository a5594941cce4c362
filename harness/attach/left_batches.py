"""The batches of a step that a script has loaded and not used, as by a loop that `break` ends."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ReferenceType

from torch.utils.data import DataLoader

from harness.attach.passes import LoaderPass


class UnusedBatch(NamedTuple):
    """A batch that no model was called with so far.

    Attributes:
        batches: its pass.
        samples: the number of its samples.
        has_fed: whether its pass had fed the training before.
    """

    batches: ReferenceType[LoaderPass]
    samples: int
    has_fed: bool


class LeftBatches:
    """The unused batches of the step under way, and those of them that the script has left.

    A batch is left once its loader was opened again, before the end of its pass, and its iterator is gone: as
    long as that exists, as where two loops over a loader are nested, the script may still use it. The first
    batch of a pass is left only if the script still has the iterator of the next one: as where an epoch
    begins with `next(iter(loader))` for the shapes, and then loops over the loader. Otherwise it may be one
    of several that a step takes by `next(iter(loader))`.

    Attributes:
        unused: the batches since the last call of a model or backward pass.
        taken: those before that call, if it is the newest one of a model.
        reopened: those before, of a loader that was opened again since then.
        inspected: samples of the first batches of passes, which are left if the next pass is read on.
    """

    def __init__(self) -> None:
        self.unused: list[UnusedBatch] = []
        self.taken: list[UnusedBatch] = []
        self.reopened: list[UnusedBatch] = []
        self.inspected = 0
        self._next_reader: Callable[[], object] = _nothing

    def loader_opened(self, loader: DataLoader[Any]) -> None:
        """A loader is opened: the script may have left its passes before, unless it has seen their end."""
        unused, self.unused = self.unused, []
        for batch in unused:
            batches = batch.batches()
            is_left = batches is not None and batches.loader is loader and not batches.is_over
            (self.reopened if is_left else self.unused).append(batch)

    def samples_inspected(self) -> int:
        """Return the samples of the first batches that were left, as a later one is used. They are counted
        once."""
        samples = self.inspected if self._next_reader() is not None else 0
        self.inspected, self._next_reader = 0, _nothing
        return samples

    def samples_left(self, newest: LoaderPass | None) -> int:
        """Return the samples of the batches that were left before one of `newest` arrived."""
        gone = [batch for batch in self.reopened if batch.batches() is None]
        self.inspected += sum(batch.samples for batch in gone if not batch.has_fed)
        self._next_reader = _nothing if newest is None else newest.reader
        self.unused.clear()
        self.reopened.clear()
        return sum(batch.samples for batch in gone if batch.has_fed)

    def clear(self) -> None:
        """Forget all batches."""
        self.unused.clear()
        self.taken.clear()
        self.reopened.clear()
        self.inspected, self._next_reader = 0, _nothing


def _nothing() -> None:
    """No pass is read."""
