"""The iterator of a script's DataLoader, with the time that each batch takes."""

from collections.abc import Iterator
from typing import Any, Protocol


class BatchEvents(Protocol):
    """The receiver of events of loaders."""

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        ...

    def fetch(self, iterator: Iterator[Any]) -> Any:
        """Return the next batch of `iterator`; raises StopIteration at its end."""
        ...


class ScriptIterator:
    """An iterator over the batches of another one. Other attributes are those of that one."""

    def __init__(self, batches: Iterator[Any], events: BatchEvents) -> None:
        self._batches = batches
        self._events = events

    def __iter__(self) -> "ScriptIterator":
        return self

    def __next__(self) -> Any:
        if not self._events.follows():
            return next(self._batches)
        return self._events.fetch(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
