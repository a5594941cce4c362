"""File cache of rows in the home, so that a repeated request needs no child process."""

import os
import tempfile
from pathlib import Path
from typing import Generic

from harness.predict.answer import Prediction
from harness.records.json import Row, from_json, to_json

MOST_FILES = 500


class RowCache(Generic[Row]):
    """One JSON file per row of `kind` in `folder`; with None nothing is stored. Rows that cannot be read or
    written are silently not cached: they can be computed again."""

    def __init__(self, kind: type[Row], folder: Path | None) -> None:
        self._kind = kind
        self._folder = folder

    def get(self, key: str) -> Row | None:
        """Return the row stored under `key`; None without one, or if its file is damaged."""
        if self._folder is None:
            return None
        try:
            return from_json(self._kind, self._path(self._folder, key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, row: Row) -> None:
        """Store `row` atomically; the oldest files are deleted beyond `MOST_FILES`."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._evict(self._folder)
            number, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with open(number, "w", encoding="utf-8") as file:
                file.write(to_json(row))
            os.replace(name, self._path(self._folder, key))
        except OSError:
            return

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"

    @staticmethod
    def _evict(folder: Path) -> None:
        with os.scandir(folder) as entries:
            files = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
        for _, path in files[: max(0, len(files) - MOST_FILES + 1)]:
            os.unlink(path)


def prediction_cache(home: Path | None) -> RowCache[Prediction]:
    """Return the cache of predictions in Stepscope's `home`; with None nothing is stored."""
    return RowCache(Prediction, None if home is None else home / "predictions")
