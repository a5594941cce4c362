"""One pass of a script over a loader, whose iterator can be exchanged between two batches.

Torch opens each iterator from the script's own loader, some of whose attributes have other values meanwhile.
With workers, batches that were loaded in advance are loaded again after an exchange.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import ref

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from harness.attach.batches import batch_axis, first_tensor, is_vector_of_floats, samples_of
from harness.attach.indices import DrawnSizes, IndexStream
from harness.attach.loader_values import (
    DEFAULT_PREFETCH,
    LoaderValues,
    batches_of,
    drops_last,
    is_iterable,
    sampler_of,
    samples_in,
    standing_in,
    values_of,
)
from harness.attach.places import Place
from harness.attach.reasons import reason_of
from harness.attach.torch_iterator import (
    index_stream,
    keeps_order,
    loaded_ahead,
    new_size,
    opening_attributes,
    retire,
    seeded_generator,
)
from harness.errors import StepscopeError

# Opens torch's iterator of a loader.
OpenIterator = Callable[[DataLoader[Any]], Iterator[Any]]

# The most batches before the training that may be of its first step; a script may read a whole dataset.
_MOST_EARLY = 1_024
# Of batches none of whose dimensions counts samples, such as the nodes of several graphs or one sample alone.
_NO_AXIS = -1


class LoaderPass:
    """The batches of one `iter(loader)` of a script.

    Attributes:
        reference: returns its loader; None if nobody else keeps that.
        values: the values with which its iterator was opened.
        batches: torch's iterator, which an exchange replaces.
        is_over: whether the script has seen its end.
        is_ahead: whether the script loads its batches before the step that uses them.
        samples_ahead: samples of the batch that its reader, a loader of Accelerate, has not returned yet;
            None: its reader returns each batch at once.
        has_fed: whether it has fed a step of the training.
        axis: what counts the samples of its batches, see `batch_axis`; None before the first batch, -1 where
            nothing does.
        early_samples: the numbers of samples in its batches before training began, since the last evaluation;
            0: unknown.
        drawn_last: the indices of its last batches, where they count the samples of the newest one.
        opened_at: the place in the script that opens it.
        opened_after: how many steps that were not plain had ended as it was opened.
        reader: returns the iterator that the script reads; None: it is gone.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        open_iterator: OpenIterator,
        changed: Callable[["LoaderPass", Exception | None], None],
    ) -> None:
        """`changed` is called after each opening of an iterator; with the error where new values failed, at
        the opening or at the first batch after it, and the earlier ones are in effect again."""
        # A class with an `__iter__` of its own may keep what that returns. A reference back would then leave
        # the end of its workers to the collection of garbage, for which torch makes the script wait.
        is_own = type(loader).__iter__ is not DataLoader.__iter__
        self.reference = ref(loader)
        self._loader: Callable[[], DataLoader[Any] | None] = self.reference if is_own else lambda: loader
        self.values = LoaderValues(None, False, 0, DEFAULT_PREFETCH)
        self.batches: Iterator[Any] = iter(())
        self.is_over = self.is_ahead = self.has_fed = False
        self.samples_ahead: int | None = None
        self.axis: int | None = None
        self.early_samples: deque[int] = deque(maxlen=_MOST_EARLY)
        self.drawn_last: Sequence[Sequence[Any]] | None = None
        self.opened_at: Place = ()
        self.opened_after = 0
        self.reader: Callable[[], Iterator[Any] | None] = ref(self)
        self._open_iterator = open_iterator
        self._changed = changed
        self._attributes: dict[str, Any] = {}
        self._seeds: dict[str, Any] = {}
        self._earlier: LoaderValues | None = None
        self._exchanges = 0
        # Batches of this epoch, and their samples, from before the newest exchange.
        self._earlier_batches = self._earlier_samples = 0
        self._opens_itself = False
        self._drawn_sizes: DrawnSizes | None = None
        self._thread: int | None = None

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The loader; None if the script has dropped it meanwhile."""
        return self._loader()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._thread = threading.get_ident()
        try:
            batch = next(self.batches)
        except StopIteration:
            self.is_over = True
            raise
        except Exception as error:
            if self._earlier is None or not self._undo(self._earlier, error):
                raise
            batch = next(self.batches)
        if self._earlier is not None and self._is_proof(self._earlier):
            self._earlier = None
        return batch

    def samples_of(self, batch: Any) -> int | None:
        """Return the number of samples in the batch that the script has next, the newest of this pass unless
        its reader is ahead; None: unknown, or of a later step than the one under way. A collate function may
        return None for a batch without any usable sample."""
        if self.is_ahead:
            return None
        if self.samples_ahead is None:
            return self._samples_of(batch)
        if (samples := self._samples_of(batch)) is None:
            self.samples_ahead = None  # The model's inputs count from now on.
            return None
        samples, self.samples_ahead = self.samples_ahead, samples
        return samples

    def _samples_of(self, batch: Any) -> int | None:
        if batch is None:
            return 0
        drawn = self._drawn
        if drawn is None and self._were_drawn_before:
            return None  # As its first tensor may be anything, the model's inputs count until some are known.
        if self.axis is None:
            axis = batch_axis(batch, self.values.batch_size)
            is_counted = drawn in (None, samples_of(batch, axis)) and not self._may_be_one_sample(batch)
            self.axis = axis if is_counted else _NO_AXIS
        if drawn is not None:
            if self.samples_ahead is None:
                self.drawn_last = self._drawn_last
            return drawn
        return None if self.axis == _NO_AXIS else samples_of(batch, self.axis)

    @property
    def is_tried(self) -> bool:
        """Return whether a batch of full size was returned since its values were last changed."""
        return self._earlier is None

    @property
    def tried_values(self) -> LoaderValues:
        """The newest values with which a batch was returned, or those before it was opened."""
        return self.values if self._earlier is None else self._earlier

    def prepare(
        self, loader: DataLoader[Any], values: LoaderValues, tried: LoaderValues | None = None
    ) -> None:
        """Have `open` use `values`. If the first batch fails, the pass goes on with `tried`, those with which
        a batch of the loader was returned before; None: they are tried themselves."""
        self.values = values
        self._earlier = None if tried in (None, values) else tried
        stream = None
        if not is_iterable(loader):
            stream = IndexStream(sampler_of(loader), new_size(loader, values), values.most_sent)
        self._attributes = opening_attributes(loader, values, stream) | self._seeds

    def draw_no_seed(self, number: int) -> None:
        """Have the iterator that `prepare` prepares draw no seed for its workers from torch's random numbers,
        as the script's loader, which keeps its workers, draws none after its first epoch. `number` is another
        one for each iterator."""
        self._seeds = {"generator": seeded_generator(torch.initial_seed() + number)}

    def follow(self, loader: DataLoader[Any]) -> None:
        """Take the values of a loader that has opened `batches` in a way of its own: they are fixed."""
        self._opens_itself, self.values = True, values_of(loader)
        batches: Any = self.batches
        if isinstance(batches, _BaseDataLoaderIter) and not is_iterable(loader):
            self._drawn_sizes = DrawnSizes(batches._sampler_iter, self.values.most_sent)
            batches._sampler_iter = self._drawn_sizes
        self._changed(self, None)

    def open(self, loader: DataLoader[Any]) -> None:
        """Open the iterator. Raises what the script's loader raises with its own values."""
        try:
            with standing_in(loader, self._attributes):
                self.batches = self._open_iterator(loader)
        except Exception as error:
            own = values_of(loader)
            if not self._attributes or self.values == own:
                raise
            self.prepare(loader, own)
            with standing_in(loader, self._attributes):
                self.batches = self._open_iterator(loader)
            self._changed(self, error)
        else:
            if self._stream is None and not is_iterable(loader):  # It cannot go on with other values.
                self._earlier = None
            self._changed(self, None)

    @property
    def fixed_because(self) -> str | None:
        """The reason that the loader cannot change at all; None: it can."""
        loader = self.loader
        if loader is None:
            return "the script has dropped it and goes on with its iterator"
        if self._opens_itself or (self._stream is None and not is_iterable(loader)):
            return f"{type(loader).__name__} opens its iterator in a way of its own"
        if self._thread not in (None, threading.get_ident()):
            return "another thread than the one that trains reads its batches"
        return None

    @property
    def obstacle(self) -> str | None:
        """The reason that the iterator cannot be exchanged within an epoch; None: it can."""
        if self.loader is None:
            return "the script has dropped this loader"
        if is_iterable(self.loader):
            return "an IterableDataset cannot be continued by another iterator"
        if self.values.num_workers and not keeps_order(self.batches):
            return "with in_order=False the order of its batches is not known"
        return None

    def samples_left(self, samples: int) -> int | None:
        """Return how many of the epoch's `samples` the script has not had yet; None: unknown."""
        stream = self._stream
        if stream is None or stream.epoch is None or stream.epoch.grouped is None:
            return None
        return samples - stream.epoch.delivered(self._loaded_ahead)

    def has_other_batches(self, loader: DataLoader[Any]) -> bool:
        """Return whether this epoch of `loader`, its own, has batches of another size than the script's."""
        if self._stream is None:
            return False
        return self._earlier_batches > 0 or self.values.batch_size != values_of(loader).batch_size

    @property
    def total_batches(self) -> int:
        """The number of batches in this epoch. Raises TypeError where torch's iterator has no length."""
        loader = self.loader
        if loader is not None and self.has_other_batches(loader):
            samples = samples_in(loader)
            if samples is not None:
                return self.length(samples, drop_last=drops_last(loader))
        return len(self.batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def length(self, samples: int, *, drop_last: bool) -> int:
        """Return the number of batches in this epoch of `samples`, of whatever sizes."""
        left = samples - self._earlier_samples
        return self._earlier_batches + batches_of(left, self.values.batch_size or 1, drop_last=drop_last)

    def exchange(self, values: LoaderValues) -> None:
        """Go on with this epoch with `values`: no sample is lost or repeated. Raises StepscopeError when the
        iterator cannot be opened; everything is then as before. Only without an `obstacle`."""
        tried = self.tried_values
        self._exchange(values, self._loaded_ahead)
        self._earlier = None if values == tried else tried
        self._changed(self, None)

    @property
    def _stream(self) -> IndexStream | None:
        return index_stream(self.batches)

    @property
    def _drawn(self) -> int | None:
        """The number of indices that the newest batch was loaded from; None: unknown."""
        stream = self._stream
        drawn = self._drawn_sizes if stream is None else stream.epoch
        if drawn is None or not keeps_order(self.batches):
            return None
        return drawn.size_of_sent(self._loaded_ahead)

    @property
    def _were_drawn_before(self) -> bool:
        """Return whether the indices of the newest batch were drawn as the iterator was made, for workers."""
        drawn = self._drawn_sizes
        return drawn is not None and self.values.num_workers > 0 and self._loaded_ahead >= drawn.count

    def _may_be_one_sample(self, batch: Any) -> bool:
        """Return whether `batch`, which torch has not collated (`batch_size=None`), may be a sample as well
        as a batch that the dataset makes; the model's inputs then show which. Streams mostly make batches,
        but of a vector of floats that is not known either."""
        loader, stream = self.loader, self._stream
        if stream is not None and stream.epoch is not None:
            return stream.epoch.sends_single_indices
        is_collated = loader is None or loader.batch_sampler is not None
        return not is_collated and is_vector_of_floats(first_tensor(batch))

    @property
    def _drawn_last(self) -> Sequence[Sequence[Any]] | None:
        """The indices of the last batches, if the newest of them is that of the newest batch."""
        stream = self._stream
        if self.values.num_workers or stream is None or stream.epoch is None:
            return None
        return stream.epoch.grouped

    @property
    def _loaded_ahead(self) -> int:
        """The number of batches that the workers have or load."""
        return loaded_ahead(self.batches, self.values)

    def _is_proof(self, earlier: LoaderValues) -> bool:
        """Return whether the newest batch shows that the loader works with the new values: one at the end of
        an epoch may be no larger than those with the `earlier` ones."""
        size, drawn, loader = self.values.batch_size, self._drawn, self.loader
        if size is None or size == earlier.batch_size or drawn is None or loader is None:
            return True
        return drawn >= min(size, samples_in(loader) or size)

    def _undo(self, values: LoaderValues, error: Exception) -> bool:
        """Exchange the iterator, whose first batch failed, for one with `values` that begins with that batch;
        return whether it could be opened."""
        batches, stream, self._earlier = self.batches, self._stream, None
        try:
            if stream is None:
                self._begin_again(values)
            else:
                assert stream.epoch is not None
                is_drawn = batches._rcvd_idx if self.values.num_workers else stream.epoch.has_sent  # type: ignore[attr-defined]
                self._exchange(values, self._loaded_ahead + int(is_drawn))
        except StepscopeError:
            return False
        self._changed(self, error)
        return True

    def _begin_again(self, values: LoaderValues) -> None:
        """Begin the pass over an IterableDataset anew with `values`. Raises StepscopeError when the iterator
        cannot be opened."""
        loader, old = self.loader, self.batches
        if loader is None:
            raise StepscopeError("The script has dropped the loader.")
        persistent, loader._iterator = loader._iterator, None
        self.prepare(loader, values)
        try:
            with standing_in(loader, self._attributes):
                self.batches = self._open_iterator(loader)
        except Exception as error:
            loader._iterator = persistent
            raise _unopened(error) from error
        retire(old)

    def _exchange(self, values: LoaderValues, undelivered: int) -> None:
        loader, old, stream = self.loader, self.batches, self._stream
        assert loader is not None
        assert stream is not None
        if loader.dataset is not old._dataset:  # type: ignore[attr-defined]  # as that of recbole's loaders
            raise StepscopeError("The loader has another dataset than the iterator that it opened.")
        epoch, following = stream.epoch, None
        if epoch is not None:
            following = epoch.go_on(values.batch_size, undelivered, values.most_sent)
        new = IndexStream(sampler_of(loader), new_size(loader, values), values.most_sent, following)
        # The script's random numbers stay its own: the seeds of new workers come from elsewhere.
        self._exchanges += 1
        seeds = seeded_generator(old._base_seed + self._exchanges)  # type: ignore[attr-defined]  # torch's own
        persistent, loader._iterator = loader._iterator, None
        try:
            with standing_in(loader, opening_attributes(loader, values, new) | {"generator": seeds}):
                self.batches = self._open_iterator(loader)
        except Exception as error:
            loader._iterator = persistent
            if epoch is not None and following is not None:
                epoch.take_back(following, undelivered)
            raise _unopened(error) from error
        if epoch is not None and values.batch_size is not None:
            samples = epoch.delivered(undelivered)
            earlier = samples - self._earlier_samples
            self._earlier_batches += batches_of(earlier, self.values.batch_size or 1, drop_last=False)
            self._earlier_samples = samples
        self.values, self.drawn_last = values, None
        retire(old)


def _unopened(error: Exception) -> StepscopeError:
    return StepscopeError(f"The loader could not be opened with it: {reason_of(error)}")
