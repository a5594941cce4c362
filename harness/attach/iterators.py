"""The iterator of a script's DataLoader, with the time that each batch takes."""

from threading import get_ident
from typing import Any, Protocol

from torch import Tensor

from harness.attach.guard import ScriptGuard
from harness.attach.passes import LoaderPass
from harness.attach.plain_step import PlainStep


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
        # In one, because `__getattr__` makes each look at an attribute a slow one.
        self._parts = batches, events.plain, events.guard, events

    def __iter__(self) -> "ScriptIterator":
        return self

    def __next__(self) -> Any:
        batches, plain, guard, events = self._parts
        times_ns = plain.times_ns
        if plain.batches is not batches or times_ns or get_ident() != guard.thread:
            return events.next_batch(batches)
        now = plain.now
        times_ns.append(now())
        try:
            batch = next(batches.batches)
        except BaseException as error:
            events.batch_missed(batches, error)
            raise
        if len(times_ns) != 1:  # The dataset has a training of its own.
            return events.arrived(batches, batch)
        times_ns.append(now())
        is_plain = type(batch) is list and batch and type(tensor := batch[0]) is Tensor and not batches.axis
        plain.samples = tensor.size(0) if is_plain and tensor.dim() else events.count_samples(batches, batch)
        return batch

    def __len__(self) -> int:
        return len(self._pass.batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pass.batches, name)
