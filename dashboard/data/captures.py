"""Capture files in a run's folder: raw memory snapshots and traces of profiles."""

from pathlib import Path

from harness.store.folder import RunFolder


def captured(folder: RunFolder, name: str | None) -> Path | None:
    """Return the path of the run's capture file `name`; None if there is none.

    A log may come from elsewhere: names that lead out of the run's folder, links and everything else that is
    not a regular file are ignored.
    """
    if not name or Path(name).name != name:
        return None
    path = folder.captures / name
    if folder.captures.is_symlink() or path.is_symlink() or not path.is_file():
        return None
    return path
