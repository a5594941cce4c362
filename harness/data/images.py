"""A folder of the user's own images, one subfolder per class."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from harness.data.source import Batch, Indices
from harness.errors import SettingError, StepscopeError
from harness.records.data import DataKind, DataShape
from harness.settings import Settings

# In larger folders only the headers of the images are checked at the start.
_DECODE_UP_TO = 5_000

# Pillow's errors for files that are broken, truncated, no images, or suspiciously large.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class ImagesSource:
    """RGB images, center-cropped to a square and resized to the image size."""

    def __init__(self, files: list[str], labels: list[int], shape: DataShape) -> None:
        self.shape = shape
        self.note: str | None = None
        self._files = files
        self._labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        """The number of readable images."""
        return len(self._files)

    def fetch(self, indices: Indices) -> Batch:
        """Read the images at `indices`; raises StepscopeError with the first unreadable file."""
        pixels = np.stack([_read(self._files[index], self.shape.width) for index in indices])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div_(255)
        return Batch(images, torch.from_numpy(self._labels[indices]))


def _decode(file: str, size_px: int) -> NDArray[np.uint8]:
    with Image.open(file) as image:
        image.draft("RGB", (size_px, size_px))
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = image.convert("RGB").resize(
            (size_px, size_px), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        return np.asarray(square)


def _read(file: str, size_px: int) -> NDArray[np.uint8]:
    try:
        return _decode(file, size_px)
    except _UNREADABLE as error:
        raise StepscopeError(
            f"The image {file!r} can no longer be read ({error}); restore or remove it and start again."
        ) from error


def shape_of(settings: Settings) -> DataShape:
    """Three channels at `settings.image_size`, and a class per subfolder; `open_source` excludes subfolders
    without a readable image. Raises SettingError when there is no subfolder."""
    classes = len(_class_folders(settings))
    if not classes:
        raise _no_images(settings)
    return _shape(settings, classes)


def _shape(settings: Settings, classes: int) -> DataShape:
    size_px = settings.image_size
    return DataShape(DataKind.IMAGE, channels=3, height=size_px, width=size_px, classes=classes)


def _class_folders(settings: Settings) -> list[Path]:
    root = Path(settings.data_path or "").expanduser()
    return sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []


def _no_images(settings: Settings) -> SettingError:
    return SettingError(
        "data_path",
        f"{settings.data_path!r} has no images in subfolders; put each class into its own subfolder.",
    )


def open_source(settings: Settings) -> ImagesSource:
    """Open the images under `settings.data_path`; `note` gives the number of skipped files.

    Raises SettingError when there is no subfolder with a readable image.
    """
    files = [
        (file, folder.name)
        for folder in _class_folders(settings)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    size_px = settings.image_size if len(files) <= _DECODE_UP_TO else None
    with ThreadPoolExecutor(max_workers=4) as pool:
        readable = list(pool.map(lambda item: _is_image(str(item[0]), size_px), files))
    images = [item for item, is_readable in zip(files, readable, strict=True) if is_readable]
    if not images:
        raise _no_images(settings)
    names = sorted(Counter(name for _, name in images))
    source = ImagesSource(
        [str(file) for file, _ in images],
        [names.index(name) for _, name in images],
        _shape(settings, len(names)),
    )
    skipped = [file for (file, _), is_readable in zip(files, readable, strict=True) if not is_readable]
    if skipped:
        number = "1 file" if len(skipped) == 1 else f"{len(skipped):,} files"
        source.note = f"{number} could not be read as an image and skipped; the first is {str(skipped[0])!r}."
    return source


def _is_image(file: str, size_px: int | None) -> bool:
    try:
        if size_px is not None:
            _decode(file, size_px)
            return True
        with Image.open(file):
            return True
    except _UNREADABLE:
        return False
