"""Predictions kept as files in the home, so that a question answered once needs no child process."""

import os
import tempfile
from pathlib import Path

from harness.prediction import Prediction, from_json, to_json

MOST_FILES = 500


class PredictionCache:
    """One JSON file a question in `folder`; None: nothing is kept. What cannot be read or written is not
    cached, and nobody is bothered with it: the answer can always be computed again."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: str) -> Prediction | None:
        """The prediction kept under `key`; None when there is none, or its file is damaged."""
        if self._folder is None:
            return None
        try:
            return from_json(Prediction, self._path(self._folder, key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, prediction: Prediction) -> None:
        """Keep `prediction`, whole or not at all; the oldest files make room."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(self._folder)
            number, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with open(number, "w", encoding="utf-8") as file:
                file.write(to_json(prediction))
            os.replace(name, self._path(self._folder, key))
        except OSError:
            return

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"

    @staticmethod
    def _make_room(folder: Path) -> None:
        with os.scandir(folder) as entries:
            files = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
        for _, path in files[: max(0, len(files) - MOST_FILES + 1)]:
            os.unlink(path)
