"""The iterator of a script's DataLoader, with the time that each batch takes."""

from collections.abc import Callable
from typing import Any

from harness.attach.passes import LoaderPass


class ScriptIterator:
    """The batches of a pass over a loader. Other attributes are those of torch's iterator."""

    def __init__(self, batches: LoaderPass, next_batch: Callable[[LoaderPass], Any]) -> None:
        """`next_batch` returns the next batch of a pass."""
        self._pass = batches
        self._next_batch = next_batch

    def __iter__(self) -> "ScriptIterator":
        return self

    def __next__(self) -> Any:
        return self._next_batch(self._pass)

    def __len__(self) -> int:
        return len(self._pass.batches)  # type: ignore[arg-type]  # those of a DataLoader have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pass.batches, name)
