"""Import of a run's folder: its log, validated, and copies of its other files.

What would name a process is left out, so an imported run has none and is never signaled: `process.json`, and
the lock on `alive`, which belongs to the file of the source.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.errors import HomeError, LogError
from harness.files.regular import open_regular, private_opener
from harness.importing.imported import Imported
from harness.records.imported import ImportOrigin, ImportSource
from harness.store.folder import RunFolder, shown_name
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.store.log_copy import copy_log
from harness.store.reader import LogReader
from harness.words import plural, printable

# A trace of a large model has some hundred megabytes.
_MOST_FILE_BYTES = 1 << 30
_MOST_CAPTURES = 1_000


def import_run(home: Home, source: RunFolder, name: str | None, now_unix_ns: int) -> Imported:
    """Copy a run into `home`; of a live one what its log has by now. Raises as `import_folder`."""
    request = source.request()
    with LogReader(source.log) as reader:
        run = reader.run()
    is_live = is_alive(source.alive)
    origin = ImportOrigin(ImportSource.RUN, printable(str(source.path)), now_unix_ns)
    default_name = shown_name(run.name, request.name)
    folder = home.create_imported(name, default_name, request, origin)
    try:
        chosen = folder.request().name
        copy_log(source.log, folder.log, folder.run_id, chosen)
        notes = [*_copy_rank_logs(source, folder, chosen), *_copy_files(source, folder)]
        with LogReader(folder.log) as reader:
            steps = reader.extent().steps
    except BaseException as error:
        with suppress(HomeError):
            home.remove(folder)
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            raise HomeError(
                f"{printable(str(source.path))} cannot be copied to {home.path}: {reason}."
            ) from None
        raise
    if is_live:
        notes.insert(0, f"It is still running there: imported up to now, {plural(steps, 'step')}.")
    return Imported(folder, chosen, plural(steps, "step"), tuple(notes))


def _copy_rank_logs(source: RunFolder, target: RunFolder, name: str) -> Iterator[str]:
    """Copy the logs of the ranks other than the first, and their `alive`; yield a sentence for each that is
    left out."""
    for rank, log in source.rank_logs().items():
        if not rank:
            continue
        copy = RunFolder(target.path, rank)
        try:
            copy_log(log, copy.log, target.run_id, name)
        except LogError as error:
            copy.log.unlink(missing_ok=True)
            yield f"{log.name} left out: {error}"
            continue
        _copy(RunFolder(source.path, rank).alive, copy.alive)


def _copy_files(source: RunFolder, target: RunFolder) -> Iterator[str]:
    """Copy the other files; yield a sentence for each that is left out."""
    names = ("alive", "control", "output", "rank_ends")
    pairs = [(getattr(source, name), getattr(target, name)) for name in names]
    captures: list[str] = []
    if source.captures.is_symlink():
        yield "captures left out: it is a symbolic link."
    else:
        with suppress(OSError):  # Most runs have none.
            captures = sorted(os.listdir(source.captures))
    if captures:
        target.captures.mkdir(mode=0o700)
    if len(captures) > _MOST_CAPTURES:
        yield f"{plural(len(captures) - _MOST_CAPTURES, 'capture')} left out: more than {_MOST_CAPTURES:,}."
    pairs += [(source.captures / name, target.captures / name) for name in captures[:_MOST_CAPTURES]]
    for one, two in pairs:
        problem = _copy(one, two)
        if problem is not None:
            yield f"{printable(str(one.relative_to(source.path)))} left out: {problem}."


def _copy(source: Path, target: Path) -> str | None:
    """Copy a regular file, private to the user; return why it is left out, None also if it is missing. Raises
    OSError when the copy cannot be written."""
    try:
        descriptor = open_regular(source)
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > _MOST_FILE_BYTES:
            return f"larger than {_MOST_FILE_BYTES >> 30} GiB"
        with open(target, "xb", opener=private_opener) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    return None
