"""Which runs are live or ended recently, without reading their logs."""

import os

from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive


def active_folders(home: Home, since_unix_s: float) -> list[RunFolder]:
    """Return the runs of `home` that are live or whose files changed after `since_unix_s`, the newest first.
    Takes some microseconds for each of the others. Raises HomeError."""
    return [
        folder for folder in home.runs() if _changed_unix_s(folder) >= since_unix_s or is_alive(folder.alive)
    ]


def _changed_unix_s(folder: RunFolder) -> float:
    """Return the time of the newest change: of the heartbeat, the log, or the request."""
    newest = 0.0
    for path in (folder.alive, folder.log, f"{folder.log}-wal", folder.path):
        try:
            newest = max(newest, os.stat(path).st_mtime)
        except OSError:
            continue
    return newest
