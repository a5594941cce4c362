"""The indices that torch's iterator of a loader draws, in a form that another iterator can go on from.

As long as nothing is exchanged, the batches and the random numbers drawn for them are those of the loader's
own sampler, drawn at the same moments.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from numbers import Integral
from typing import Any

from torch.utils.data import BatchSampler

_END = object()


class Epoch:
    """One pass over the units of a sampler: single indices that are grouped into batches of `size`, or, with
    size None, whatever a sampler of the script's own yields.

    Attributes:
        handed: the number of units in the batches that were handed out, also with sizes before this one.
    """

    def __init__(
        self,
        units: Iterator[Any],
        size: int | None,
        *,
        drop_last: bool,
        most_sent: int,
        first: Iterable[Any] = (),
        handed: int = 0,
    ) -> None:
        """`first` are units that come before `units`; `most_sent` is the number of batches to remember."""
        self.handed = handed
        self._units = units
        self._first = deque(first)
        self._size = size
        self._drop_last = drop_last
        self._sent: deque[Any] = deque(maxlen=most_sent)

    @property
    def has_sent(self) -> bool:
        """Return whether a batch was handed out."""
        return bool(self._sent)

    @property
    def grouped(self) -> Sequence[list[Any]] | None:
        """The indices of the last batches that were handed out, of each a list; None where a unit of the
        sampler's may be anything."""
        return None if self._size is None else self._sent

    def batches(self) -> Iterator[Any]:
        """Yield the batches, as torch's BatchSampler does."""
        sent = self._sent
        if self._size is None:
            while (unit := self._draw_one()) is not _END:
                sent.append(unit)
                yield unit
            return
        while batch := self._draw(self._size) if self._first else list(islice(self._units, self._size)):
            if self._drop_last and len(batch) < self._size:
                # Smaller batches may take these later.
                self._first.extend(batch)
                return
            sent.append(batch)
            self.handed += len(batch)
            yield batch

    def size_of_sent(self, later: int) -> int | None:
        """Return the number of indices in the batch that was handed out before the `later` last ones; None:
        unknown, as where a sampler's unit may be a whole batch that the dataset makes."""
        if later >= len(self._sent) or type(batch := self._sent[-1 - later]) is not list:
            return None
        return len(batch)

    @property
    def sends_single_indices(self) -> bool:
        """Return whether the newest unit is a single index that no list groups: of one sample, or of a whole
        batch that the dataset makes."""
        return self._size is None and bool(self._sent) and isinstance(self._sent[-1], Integral)

    def go_on(self, size: int | None, undelivered: int, most_sent: int) -> "Epoch":
        """Return the rest of this epoch in batches of `size`, None: of the same size: first the units of the
        last `undelivered` batches. This one is over then, unless `take_back` undoes it."""
        delivered = self.delivered(undelivered)
        first = [*self._units_of_last(undelivered), *self._first]
        drop_last, units = self._drop_last, self._units
        size = self._size if size is None else size
        return Epoch(units, size, drop_last=drop_last, most_sent=most_sent, first=first, handed=delivered)

    def delivered(self, undelivered: int) -> int:
        """Return the number of units handed out without those of the last `undelivered` batches."""
        return self.handed - len(self._units_of_last(undelivered))

    def take_back(self, following: "Epoch", undelivered: int) -> None:
        """Go on with this epoch, `undelivered` of whose batches are still to come, instead of the one that
        `go_on` returned, none of whose batches was delivered."""
        drawn = [*following._units_of_last(len(following._sent)), *following._first]
        self._first = deque(drawn[len(self._units_of_last(undelivered)) :])

    def _units_of_last(self, batches: int) -> list[Any]:
        last = list(self._sent)[len(self._sent) - batches :]
        return last if self._size is None else [index for batch in last for index in batch]

    def _draw_one(self) -> Any:
        return self._first.popleft() if self._first else next(self._units, _END)

    def _draw(self, count: int) -> list[Any]:
        first = self._first
        batch = [first.popleft() for _ in range(min(count, len(first)))]
        return batch + list(islice(self._units, count - len(batch)))


class IndexStream:
    """The sampler of a loader, in whose place torch's iterator draws from it. Other attributes are the
    sampler's.

    Attributes:
        epoch: the newest epoch; None before the first batch.
    """

    def __init__(
        self, sampler: Iterable[Any], size: int | None, most_sent: int, unfinished: Epoch | None = None
    ) -> None:
        """`size` replaces the batch size of torch's BatchSampler; the first epoch is `unfinished`, if any."""
        self.epoch = unfinished
        self._sampler = sampler
        self._size = size
        self._most_sent = most_sent
        self._is_unfinished = unfinished is not None

    def __iter__(self) -> Iterator[Any]:
        if self._is_unfinished and self.epoch is not None:
            return self._go_on(self.epoch)
        if is_grouped(self._sampler):
            return chain.from_iterable(self._group())  # Without a frame of ours around each batch.
        # A sampler may draw random numbers when it is opened, as often as torch opens it.
        self.epoch = Epoch(iter(self._sampler), None, drop_last=False, most_sent=self._most_sent)
        return self.epoch.batches()

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # as torch's loader calls it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    # Lazily, because torch's BatchSampler is a generator: it opens its sampler at the first batch.

    def _go_on(self, epoch: Epoch) -> Iterator[Any]:
        self._is_unfinished = False
        yield from epoch.batches()

    def _group(self) -> Iterator[Iterator[Any]]:
        batches: Any = self._sampler
        size = batches.batch_size if self._size is None else self._size
        units = iter(batches.sampler)
        self.epoch = Epoch(units, size, drop_last=batches.drop_last, most_sent=self._most_sent)
        yield self.epoch.batches()


class DrawnSizes:
    """The batches of indices that an iterator of torch's draws, and their sizes. For a loader that opened
    it in a way of its own: no `IndexStream` is its sampler.

    Attributes:
        count: the number of batches that were drawn.
    """

    def __init__(self, batches: Iterator[Any], most_sent: int) -> None:
        """`most_sent` is the number of sizes to keep."""
        self._batches = batches
        self._sizes: deque[int | None] = deque(maxlen=most_sent)
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self.count += 1
        self._sizes.append(len(batch) if isinstance(batch, list | tuple) else None)
        return batch

    def size_of_sent(self, later: int) -> int | None:
        """Like `Epoch.size_of_sent`; also unknown for batches drawn when the iterator was created."""
        return None if later >= len(self._sizes) else self._sizes[-1 - later]


def is_grouped(sampler: object) -> bool:
    """Return whether `sampler` is torch's own grouping of single indices into batches."""
    return type(sampler) is BatchSampler
