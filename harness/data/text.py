"""Text as bytes: of Python's standard library, or of the user's own files."""

import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from harness.data.source import Batch, Indices
from harness.errors import SettingError
from harness.records.data import DataKind, DataShape
from harness.settings import Settings

_VOCABULARY = 256
STANDARD_LIBRARY_BYTES = 8 * 2**20
_USER_FILES_BYTES = 256 * 2**20
_BINARY_PROBE_BYTES = 1024


class TextSource:
    """Consecutive windows of `sequence_length` bytes; one byte is one token."""

    def __init__(self, text: NDArray[np.uint8], shape: DataShape, note: str | None = None) -> None:
        self.shape = shape
        self.note = note
        self._text = text
        self._offsets: NDArray[np.int64] = np.arange(shape.sequence_length + 1)

    def __len__(self) -> int:
        """The number of windows that are followed by at least one byte."""
        return max(0, len(self._text) - 1) // self.shape.sequence_length

    def fetch(self, indices: Indices) -> Batch:
        """Return the windows at `indices`, and as targets the same shifted by one byte."""
        windows = self._text[indices[:, None] * self.shape.sequence_length + self._offsets]
        inputs = torch.from_numpy(windows[:, :-1].astype(np.int64))
        return Batch(inputs, torch.from_numpy(windows[:, 1:].astype(np.int64)))


def shape_of(settings: Settings) -> DataShape:
    """`settings.sequence_length` bytes."""
    return DataShape(DataKind.TEXT, vocabulary=_VOCABULARY, sequence_length=settings.sequence_length)


def shape_of_standard_library(settings: Settings) -> DataShape:
    """Like `shape_of`, with about the number of samples."""
    return shape_of(settings)._replace(samples=STANDARD_LIBRARY_BYTES // settings.sequence_length)


def open_standard_library(settings: Settings) -> TextSource:
    """Open the source code of Python's standard library, in the order of its paths, the first 8 MiB."""
    root = Path(sysconfig.get_path("stdlib"))
    text, _, _ = _read(_modules(root), STANDARD_LIBRARY_BYTES)
    if len(text) <= settings.sequence_length:
        raise SettingError(
            "data", f"Python's standard library has no source files in {str(root)!r}; use data='text'."
        )
    return TextSource(text, shape_of_standard_library(settings))


def open_own(settings: Settings) -> TextSource:
    """Open the user's file, or all files under the user's folder in the order of their paths, up to
    256 MiB."""
    path = Path(settings.data_path or "").expanduser()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    text, skipped, cut = _read(files, _USER_FILES_BYTES)
    if len(text) <= settings.sequence_length:
        raise SettingError(
            "data_path",
            f"{settings.data_path!r} has {len(text):,} bytes of readable text, and one sample needs "
            f"{settings.sequence_length + 1:,}; choose more text or a smaller sequence_length.",
        )
    return TextSource(text, shape_of(settings), _note(skipped, cut))


def _note(skipped: list[Path], cut: bool) -> str | None:
    parts = []
    if skipped:
        files = "1 file" if len(skipped) == 1 else f"{len(skipped):,} files"
        parts.append(f"{files} could not be read as text and were skipped, the first is {str(skipped[0])!r}")
    if cut:
        parts.append(f"only the first {_USER_FILES_BYTES // 2**20} MiB are used")
    return "; ".join(parts).capitalize() + "." if parts else None


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder in the order of their paths. It looks no further than they are
    taken, and not into installed packages, which may be tens of thousands of files."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "site-packages":
                yield from _modules(folder / entry.name)
        elif entry.name.endswith(".py"):
            yield folder / entry.name


def _read(files: Iterable[Path], limit_bytes: int) -> tuple[NDArray[np.uint8], list[Path], bool]:
    """Return the bytes of `files` up to a limit, the files that are unreadable or no text, and whether the
    bytes were cut."""
    pieces: list[bytes] = []
    skipped: list[Path] = []
    left_bytes = limit_bytes
    for file in files:
        if left_bytes <= 0:
            break
        try:
            with file.open("rb") as stream:
                piece = stream.read(left_bytes)
        except OSError:
            skipped.append(file)
            continue
        if b"\0" in piece[:_BINARY_PROBE_BYTES]:
            skipped.append(file)
            continue
        pieces.append(piece)
        left_bytes -= len(piece)
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), skipped, left_bytes <= 0
