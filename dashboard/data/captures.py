"""The files that a run keeps of its captures: raw snapshots of memory, traces of profiles."""

from pathlib import Path

from harness.store.folder import RunFolder


def captured(folder: RunFolder, name: str | None) -> Path | None:
    """The file of this name among the run's captures; None where there is none.

    A log may come from elsewhere: a name that leads out of the run's folder is none, and neither is a link or
    anything else that is no regular file.
    """
    if not name or Path(name).name != name:
        return None
    path = folder.captures / name
    if folder.captures.is_symlink() or path.is_symlink() or not path.is_file():
        return None
    return path
