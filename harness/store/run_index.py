"""The list of all runs, with those that have ended from a file in the home.

A run that has ended does not change. Its entry is cached with the identities, times and sizes of its files,
and is read again when one of them differs; a run with a process is always read. The file is only a cache: it
is written anew where it is missing or damaged, and no process is signaled by what it says.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from harness.files.regular import read_whole, replace_private
from harness.records.entry import RunEntry, entry_from_json
from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.store.home import INDEX, Home
from harness.store.liveness import is_alive
from harness.words import printable

# The first line of the file. Another number: entries have other fields or meanings.
_HEAD = "stepscope run index 3"
_MOST_BYTES = 256 << 20
_OVER = frozenset(state.value for state in RunState if state.is_over)
_FILES = (
    "request.json", "log.sqlite3", "log.sqlite3-wal", "control.sqlite3", "process.json", "alive",
    "harness.log", "labels.json",
)  # fmt: skip

_Stamp = list[int]


class _Cached(NamedTuple):
    stamp: _Stamp
    entry: RunEntry


class RunIndex:
    """The entries of all runs of one home. Thread-safe; several processes may share the file, of which the
    last one to write wins."""

    def __init__(self, home: Home, *, is_read_only: bool = False) -> None:
        """With `is_read_only` the file is read and never written."""
        self._home = home
        self._is_read_only = is_read_only
        self._lock = threading.Lock()
        self._cache: dict[str, _Cached] | None = None

    def entries(self, summarize: Callable[[RunFolder], RunEntry]) -> list[RunEntry]:
        """Return all runs, the newest first. `summarize` reads a run that is not cached. Raises HomeError."""
        with self._lock:
            before = self._load() if self._cache is None else self._cache
            after: dict[str, _Cached] = {}
            entries = []
            for name in self._home.folder_names():
                cached = self._current(before.get(name), name)
                if cached is None:
                    # Taken before the run is read, so that concurrent writes are read next time.
                    stamp = _stamp(f"{self._home.runs_path}/{name}")
                    cached = _Cached(stamp, summarize(RunFolder(self._home.runs_path / name)))
                entries.append(cached.entry)
                if _is_final(cached.entry):
                    after[name] = cached
            if after != before and not self._is_read_only:
                self._save(after.items())
            self._cache = after
        return sorted(entries, key=lambda entry: (entry.created_unix_ns, entry.run_id), reverse=True)

    def _current(self, cached: _Cached | None, name: str) -> _Cached | None:
        """Return the cached entry if it still describes the run, else None."""
        if cached is None or cached.stamp != _stamp(f"{self._home.runs_path}/{name}"):
            return None
        folder = RunFolder(self._home.runs_path / name)
        return None if is_alive(folder.alive) else cached

    def _load(self) -> dict[str, _Cached]:
        """Read the file; empty if it is missing or of another kind, without the lines that are damaged."""
        try:
            head, *lines = read_whole(self._home.path / INDEX, _MOST_BYTES).decode("utf-8").splitlines()
        except (OSError, ValueError):
            return {}
        cache: dict[str, _Cached] = {}
        for line in lines if head == _HEAD else ():
            try:
                name, stamp, values = json.loads(line)
                entry = entry_from_json(values)
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(name, str) and entry.state in _OVER:
                path = printable(f"{self._home.runs_path}/{name}")
                cache[name] = _Cached(stamp, entry._replace(path=path))
        return cache

    def _save(self, items: Iterable[tuple[str, _Cached]]) -> None:
        """Replace the file, if possible: on a full or read-only disk the next process reads all runs."""
        lines = [json.dumps([name, cached.stamp, cached.entry]) for name, cached in items]
        with suppress(OSError):
            replace_private(self._home.path / INDEX, "\n".join([_HEAD, *lines]) + "\n")


def _is_final(entry: RunEntry) -> bool:
    """Return whether the entry can be cached. An unreadable run is read again, as its disk may have been
    busy."""
    return entry.state in _OVER and entry.problem is None


def _stamp(folder: str) -> _Stamp:
    """Return the identity of a run's folder, and identity, time and size of its files."""
    try:
        stamp = [os.stat(folder).st_ino]
    except OSError:
        return []
    for name in _FILES:
        stamp += _identity(f"{folder}/{name}")
    return stamp


def _identity(path: str) -> tuple[int, int, int]:
    """Return inode, time of modification and size; zeros without a file, or with an empty one: readers
    create an empty write-ahead log."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else (0, 0, 0)
