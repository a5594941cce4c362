"""A person's own folder of pictures, where each subfolder is a class."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from harness.data.source import Batch, Indices
from harness.errors import SettingError, StepscopeError
from harness.records import DataKind, DataShape
from harness.settings import Settings

# Folders with more pictures than this have only their headers read at the start.
_DECODE_UP_TO = 5_000

# What pillow raises for files that are broken, truncated, no pictures, or suspiciously large.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class ImagesSource:
    """Pictures as RGB, cut square at the middle and resized to the image size."""

    def __init__(self, files: list[str], labels: list[int], shape: DataShape) -> None:
        self.shape = shape
        self.note: str | None = None
        self._files = files
        self._labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        """The number of pictures that can be read."""
        return len(self._files)

    def fetch(self, indices: Indices) -> Batch:
        """Read the pictures at `indices`; raises StepscopeError naming the first that cannot be read."""
        pixels = np.stack([_read(self._files[index], self.shape.width) for index in indices])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div_(255)
        return Batch(images, torch.from_numpy(self._labels[indices]))


def _decode(file: str, size_px: int) -> NDArray[np.uint8]:
    with Image.open(file) as picture:
        picture.draft("RGB", (size_px, size_px))
        width, height = picture.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = picture.convert("RGB").resize(
            (size_px, size_px), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        return np.asarray(square)


def _read(file: str, size_px: int) -> NDArray[np.uint8]:
    try:
        return _decode(file, size_px)
    except _UNREADABLE as error:
        raise StepscopeError(
            f"The picture {file!r} can no longer be read ({error}); restore or remove it and start again."
        ) from error


def shape_of(settings: Settings) -> DataShape:
    """Three colours at `settings.image_size`, and a class for each subfolder: those without a picture that
    can be read are found out when the source is opened. Raises SettingError when there is no subfolder."""
    classes = len(_class_folders(settings))
    if not classes:
        raise _no_pictures(settings)
    return _shape(settings, classes)


def _shape(settings: Settings, classes: int) -> DataShape:
    size_px = settings.image_size
    return DataShape(DataKind.IMAGE, channels=3, height=size_px, width=size_px, classes=classes)


def _class_folders(settings: Settings) -> list[Path]:
    root = Path(settings.data_path or "").expanduser()
    return sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []


def _no_pictures(settings: Settings) -> SettingError:
    return SettingError(
        "data_path",
        f"{settings.data_path!r} has no pictures in subfolders; put each class into a folder of its own.",
    )


def open_source(settings: Settings) -> ImagesSource:
    """The pictures under `settings.data_path`; its `note` says how many files were left out.

    Raises SettingError when there is no subfolder with a picture in it.
    """
    found = [
        (file, folder.name)
        for folder in _class_folders(settings)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    size_px = settings.image_size if len(found) <= _DECODE_UP_TO else None
    with ThreadPoolExecutor(max_workers=4) as pool:
        good = list(pool.map(lambda item: _is_picture(str(item[0]), size_px), found))
    kept = [item for item, is_good in zip(found, good, strict=True) if is_good]
    if not kept:
        raise _no_pictures(settings)
    names = sorted(Counter(name for _, name in kept))
    source = ImagesSource(
        [str(file) for file, _ in kept],
        [names.index(name) for _, name in kept],
        _shape(settings, len(names)),
    )
    left_out = [file for (file, _), is_good in zip(found, good, strict=True) if not is_good]
    if left_out:
        files = "1 file" if len(left_out) == 1 else f"{len(left_out):,} files"
        source.note = (
            f"{files} could not be read as a picture and left out; the first is {str(left_out[0])!r}."
        )
    return source


def _is_picture(file: str, size_px: int | None) -> bool:
    try:
        if size_px is not None:
            _decode(file, size_px)
            return True
        with Image.open(file):
            return True
    except _UNREADABLE:
        return False
