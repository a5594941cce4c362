"""Real runs, recorded on a GPU by `make gpu-check` and stored as small files, for tests and for the demo.

A recording is a zip file with only a run's request and its log, without captures and output.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.errors import SettingError, UsageError
from harness.files.regular import create_private
from harness.settings.spec import parse
from harness.store.folder import REQUEST, RunFolder
from harness.store.home import Home

# The largest file of a recording.
MOST_FILE_BYTES = 300 << 10
# The largest total of the recordings in a folder.
MOST_TOTAL_BYTES = 16 << 20
_LOG = "log.sqlite3"
_MOST_LOG_BYTES = 32 << 20
_MOST_REQUEST_BYTES = 256 << 10

CHECKOUT = Path(__file__).parents[2]
# The folders of a checkout with recordings; an installed package has none.
FOLDERS = (CHECKOUT / "docs" / "gpu" / "runs", CHECKOUT / "tests" / "material" / "runs")


class Recording(NamedTuple):
    """A recording on disk. `key` is the model and the preset: "transformer-h200"."""

    key: str
    path: Path


def recordings(folders: Iterable[Path] | None = None) -> list[Recording]:
    """Return the recordings in these folders (None: `FOLDERS`), by key; the first folder with a key
    counts."""
    by_key: dict[str, Recording] = {}
    for folder in FOLDERS if folders is None else folders:
        for path in sorted(folder.glob("*.zip")):
            by_key.setdefault(path.stem, Recording(path.stem, path))
    return [by_key[key] for key in sorted(by_key)]


def pack(folder: RunFolder, target: Path) -> int:
    """Write a finished run to the file `target`; return its size in bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.write(folder.path / REQUEST, REQUEST)
        file.write(folder.log, _LOG)
    return target.stat().st_size


def unpack(recording: Recording, home: Home) -> RunFolder:
    """Add a recording to `home`, as of the day of the training.

    Raises UsageError when the file is not a recording, HomeError when the home cannot be written.
    """
    try:
        with zipfile.ZipFile(recording.path) as file:
            request = json.loads(_member(file, REQUEST, _MOST_REQUEST_BYTES))
            log = _member(file, _LOG, _MOST_LOG_BYTES)
        settings, created_unix_ns = parse(request["settings"]), int(request["created_unix_ns"])
    except (zipfile.BadZipFile, OSError, KeyError, TypeError, ValueError, SettingError) as error:
        raise UsageError(f"{recording.path} is not a recording of a run: {error}") from None
    folder = home.create(_free_name(home, recording.key), settings, created_unix_ns)
    create_private(folder.log)
    folder.log.write_bytes(log)
    return folder


def add_all(home: Home) -> Iterator[RunFolder]:
    """Add every recording of this checkout. Raises what `unpack` raises."""
    for recording in recordings():
        yield unpack(recording, home)


def _member(file: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """Read a member. Raises ValueError when it is too large."""
    if file.getinfo(name).file_size > most_bytes:
        raise ValueError(f"{name} has more than {most_bytes:,} bytes")
    return file.read(name)


def _free_name(home: Home, key: str) -> str:
    names = {folder.request().name for folder in home.runs()}
    name, number = f"recorded: {key}", 1
    while name in names:
        number += 1
        name = f"recorded: {key} {number}"
    return name
