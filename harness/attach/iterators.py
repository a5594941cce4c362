"""The iterator of a script's DataLoader, with the time that each batch takes."""

from typing import Any, Protocol

from harness.attach.passes import LoaderPass


class BatchEvents(Protocol):
    """The receiver of events of loaders."""

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        ...

    def fetch(self, batches: LoaderPass) -> Any:
        """Return the next batch of `batches`; raises StopIteration at its end."""
        ...


class ScriptIterator:
    """The batches of a pass over a loader. Other attributes are those of torch's iterator."""

    def __init__(self, batches: LoaderPass, events: BatchEvents) -> None:
        self._pass = batches
        self._events = events

    def __iter__(self) -> "ScriptIterator":
        return self

    def __next__(self) -> Any:
        if not self._events.follows():
            return next(self._pass)
        return self._events.fetch(self._pass)

    def __len__(self) -> int:
        return len(self._pass.batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pass.batches, name)
