"""The batches of a step that a script has loaded and not used, as by a loop that `break` ends, or before an
evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType

from torch.utils.data import DataLoader

from harness.attach.passes import LoaderPass


@dataclass(slots=True)
class UnusedBatch:
    """A batch that nothing was trained on so far.

    Attributes:
        batches: its pass.
        samples: the number of its samples.
        has_fed: whether its pass had fed the training before.
        is_counted: whether its samples are among those of the step: an evaluation takes them out.
        is_evaluated: whether a model in evaluation mode, or without gradients, was called since.
    """

    batches: ReferenceType[LoaderPass]
    samples: int
    has_fed: bool
    is_counted: bool = True
    is_evaluated: bool = False

    @property
    def may_be_used(self) -> bool:
        """Return whether the script may still have it: the pass goes on."""
        batches = self.batches()
        return batches is not None and not batches.is_over and batches.reader() is not None


class LeftBatches:
    """The unused batches of the step under way, and those of them that the script has left.

    A batch is left once its loader, or another one in its place, was opened before the end of its pass, and
    its iterator is gone: as long as that exists, as where two loops over a loader are nested, the script may
    still use it. The first batch of a pass is left only if the script still has the iterator of the next one:
    as where an epoch begins with `next(iter(loader))` for the shapes, and then loops over the loader.
    Otherwise it may be one of several that a step takes by `next(iter(loader))`.

    Attributes:
        unused: the batches since the last call of a model that is trained, or backward pass, without those
            of other loaders that were evaluated.
        call_batches: those before that call, up to the backward pass.
        reopened: those before, of a loader that was opened again since then.
        inspected: samples of the first batches of passes, which are left if the next pass is read on.
        has_evaluated_others: whether batches of other loaders than those of the training were evaluated.
    """

    def __init__(self, feeds: Callable[[LoaderPass], bool | None]) -> None:
        """`feeds` returns whether a pass feeds the training; None: that is not known yet."""
        self._feeds = feeds
        self.unused: list[UnusedBatch] = []
        self.call_batches: list[UnusedBatch] = []
        self.reopened: list[UnusedBatch] = []
        self.inspected = 0
        self.has_evaluated_others = self._has_left_out = False
        self._next_reader: Callable[[], object] = _nothing

    def loader_opened(self, loader: DataLoader[Any]) -> None:
        """A loader is opened: the script may have left its passes before, unless it has seen their end."""
        unused, self.unused = self.unused, []
        for batch in unused:
            batches, is_left = batch.batches(), False
            if batches is not None and not (batches.is_over or batch.is_evaluated):
                is_left = batches.loader is loader or (batch.has_fed and batches.reader() is None)
            (self.reopened if is_left else self.unused).append(batch)

    def leave_evaluated(self, newest: LoaderPass) -> None:
        """Another batch of `newest` is returned: one before it that was evaluated was for that alone."""
        if self._has_left_out:
            self.unused = [
                batch
                for batch in self.unused
                if batch.is_counted or not batch.is_evaluated or batch.batches() is not newest
            ]

    def samples_left(self, newest: LoaderPass | None) -> int:
        """Return the samples of the batches that were left before one of `newest` arrived."""
        left = [batch for batch in self.reopened if batch.is_counted and not batch.may_be_used]
        self.inspected += sum(batch.samples for batch in left if not batch.has_fed)
        self._next_reader = _nothing if newest is None else newest.reader
        self.unused.clear()
        self.reopened.clear()
        return sum(batch.samples for batch in left if batch.has_fed)

    def evaluate(self) -> int:
        """A model is called in evaluation mode. Return by how many samples the step changes: without those of
        other loaders than the training's. Batches of these may be trained on after that."""
        change, unused, self.unused = -self._forget_inspected(), self.unused, []
        self.reopened.clear()
        for batch in unused:
            batches, batch.is_evaluated = batch.batches(), True
            if batches is not None and self._feeds(batches) is not False:
                self.unused.append(batch)
            elif batch.is_counted:
                change -= batch.samples
                self.has_evaluated_others = True
        return change

    def take(self) -> int:
        """A model is called for training, or gradients are computed. Return by how many samples the step
        changes: with those of batches that are used although an evaluation has taken them out, and without
        those of first ones that the script has left."""
        self.call_batches, self.unused = self.unused, []
        self.reopened.clear()
        change = -self._forget_inspected() if self.inspected else 0
        if not self._has_left_out:
            return change
        self.call_batches = [batch for batch in self.call_batches if batch.is_counted or batch.may_be_used]
        self._has_left_out = False
        return change + sum(batch.samples for batch in self.call_batches if not batch.is_counted)

    def leave_out(self) -> None:
        """Nothing since the step began, or since what it was trained on, counts any more, unless batches of
        the training are trained on after that: also those before a call of a model, which the gradients may
        still be of."""
        for batch in self.call_batches:
            batch.is_evaluated = True
        unused, self.call_batches, self.unused = self.call_batches + self.unused, [], []
        for batch in unused:
            if (batches := batch.batches()) is not None and self._feeds(batches):
                batch.is_counted, self._has_left_out = False, True
                self.unused.append(batch)
        self.reopened.clear()
        self.inspected, self._next_reader, self.has_evaluated_others = 0, _nothing, False

    def _forget_inspected(self) -> int:
        """Return the samples of the first batches that were left, as a later one is used. They are counted
        once."""
        samples = self.inspected if self.inspected and self._next_reader() is not None else 0
        self.inspected, self._next_reader = 0, _nothing
        return samples

    def clear(self) -> None:
        """Forget all batches."""
        self.unused, self.call_batches = [], []
        self.leave_out()
        self._has_left_out = False


def _nothing() -> None:
    """No pass is read."""
