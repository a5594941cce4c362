"""The result of an import."""

from typing import NamedTuple

from harness.store.folder import RunFolder


class Imported(NamedTuple):
    """An imported run, the contents in words, and what was left out, a sentence each."""

    folder: RunFolder
    name: str
    contents: str
    notes: tuple[str, ...]
