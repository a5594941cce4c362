"""Finds the runs that are live or ended recently, without reading their logs."""

import os
from collections.abc import Sequence

from harness.store.folder import RunFolder
from harness.store.liveness import is_alive


def active_folders(folders: Sequence[RunFolder], since_unix_s: float) -> list[RunFolder]:
    """Return those of `folders` that are live or whose files changed after `since_unix_s`. Takes some
    microseconds for each of the others."""
    return [folder for folder in folders if _changed_unix_s(folder) >= since_unix_s or is_alive(folder.alive)]


def _changed_unix_s(folder: RunFolder) -> float:
    """Return the time of the newest change: of the heartbeat, the log, or the request."""
    newest, path = 0.0, str(folder.path)
    for name in ("/alive", "/log.sqlite3", "/log.sqlite3-wal", ""):
        try:
            newest = max(newest, os.stat(path + name).st_mtime)
        except OSError:
            continue
    return newest
