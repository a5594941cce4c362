"""The iterator of a script's DataLoader, with the time that each batch takes."""

from collections.abc import Iterator
from itertools import chain
from threading import get_ident
from typing import Any, Protocol, cast
from weakref import ref

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

    def arrived(self, batches: LoaderPass, batch: Any) -> None:
        """A batch arrived within a step that turned out not to be plain."""
        ...

    def batch_missed(self, batches: LoaderPass, error: BaseException | None = None) -> None:
        """The next batch of a plain step raised `error`; None: there is none."""
        ...

    def count_samples(self, batches: LoaderPass, batch: Any) -> int | None:
        """Return the number of samples in a batch; None: unknown."""
        ...


class ScriptIterator(chain[Any]):
    """The batches of a pass over a loader. Other attributes are those of torch's iterator.

    The batches come from a generator: the interpreter resumes it without a call, and its variables are in
    one place. As a generator is over once it has raised an error, and a loader may go on
    after one, the next batch then comes from another.
    """

    _pass: LoaderPass

    def __new__(cls, batches: LoaderPass, events: BatchEvents) -> "ScriptIterator":
        """`events` receives the batches."""
        iterator = cast(ScriptIterator, cls.from_iterable(_until_the_end(batches, events)))
        iterator._pass, batches.reader = batches, ref(iterator)
        return iterator

    def __len__(self) -> int:
        return self._pass.total_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pass.batches, name)


def _until_the_end(batches: LoaderPass, events: BatchEvents) -> Iterator[Iterator[Any]]:
    while not batches.is_over:
        yield _until_an_error(batches, events, events.plain, events.guard)


def _until_an_error(
    batches: LoaderPass, events: BatchEvents, plain: PlainStep, guard: ScriptGuard
) -> Iterator[Any]:
    times_ns = plain.times_ns
    while True:
        if plain.batches is not batches or times_ns or get_ident() != guard.thread:
            try:
                batch = events.next_batch(batches)
            except StopIteration:
                batches.is_over = True
                return
        else:
            times_ns.append(plain.now())
            try:
                batch = next(batches.batches)
            except StopIteration:
                batches.is_over = True
                events.batch_missed(batches)
                return
            except BaseException as error:
                events.batch_missed(batches, error)
                raise
            if len(times_ns) == 1:
                times_ns.append(plain.now())
                drawn = batches.drawn_last
                if drawn is None or batch is None:
                    plain.samples = events.count_samples(batches, batch)
                else:
                    plain.samples = len(drawn[-1])
            else:  # The dataset has a training of its own.
                events.arrived(batches, batch)
        # Nothing here refers to a batch that the script has.
        yield (batch, batch := None)[0]
