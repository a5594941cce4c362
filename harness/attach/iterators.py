"""The iterator of a script's DataLoader, with the time that each batch takes."""

from threading import get_ident
from typing import Any, Protocol

from torch import Tensor

from harness.attach.guard import ScriptGuard
from harness.attach.passes import LoaderPass
from harness.attach.plain_step import PlainStep

_PLAIN = (tuple, list)


class BatchEvents(Protocol):
    """The receiver of batches, see `harness.attach.entries.StepEntries`."""

    plain: PlainStep
    guard: ScriptGuard

    def next_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of a pass; raises StopIteration at its end."""
        ...

    def arrived(self, batches: LoaderPass, batch: Any) -> Any:
        """A batch arrived within a step that turned out not to be plain; return it."""
        ...

    def batch_missed(self, batches: LoaderPass, error: BaseException) -> None:
        """The next batch of a plain step raised `error`."""
        ...

    def count_samples(self, batches: LoaderPass, batch: Any) -> int | None:
        """Return the number of samples in a batch; None: unknown."""
        ...


class ScriptIterator:
    """The batches of a pass over a loader. Other attributes are those of torch's iterator."""

    def __init__(self, batches: LoaderPass, events: BatchEvents) -> None:
        self._pass = batches
        self._events = events
        self._plain = events.plain
        self._guard = events.guard

    def __iter__(self) -> "ScriptIterator":
        return self

    def __next__(self) -> Any:
        batches, plain = self._pass, self._plain
        times_ns = plain.times_ns
        if plain.batches is not batches or times_ns or get_ident() != self._guard.thread:
            return self._events.next_batch(batches)
        now = plain.now
        times_ns.append(now())
        try:
            batch = next(batches.batches)
        except BaseException as error:
            self._events.batch_missed(batches, error)
            raise
        if len(times_ns) != 1:  # The dataset has a training of its own.
            return self._events.arrived(batches, batch)
        times_ns.append(now())
        if not batches.axis and type(batch) in _PLAIN and batch and type(tensor := batch[0]) is Tensor:
            shape = tensor.shape
            plain.samples = shape[0] if shape else self._events.count_samples(batches, batch)
        else:
            plain.samples = self._events.count_samples(batches, batch)
        return batch

    def __len__(self) -> int:
        return len(self._pass.batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pass.batches, name)
