"""Opens and reads files that anybody may have put into a run's folder: regular files alone, with a limit.

Opening a named pipe waits for its other end, and reading a device never ends: so a file is opened without
waiting, and its kind is checked on the open descriptor. A symbolic link is refused too, because a copied
folder must not show files from elsewhere. Everything refused is an OSError, as a missing file is.
"""

import errno
import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a symbolic link"),
)
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file at `path`; one that `flags` create is the user's alone.

    Never waits. Raises OSError for every other kind of file.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # A link, a socket, or a pipe opened for writing.
            check_regular(path)
        raise
    try:
        _check(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: Path) -> None:
    """Raise OSError when something other than a regular file lies at `path`; a missing file is fine."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    _check(mode, path)


def read_start(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of the regular file at `path`, or all of it. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most_bytes)


def read_end(path: Path, most_bytes: int) -> bytes:
    """The last `most_bytes` of the regular file at `path`, or all of it. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes)


def read_whole(path: Path, most_bytes: int) -> bytes:
    """The regular file at `path`. Raises OSError, also when it is larger than `most_bytes`."""
    content = read_start(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content


def create_private(path: Path) -> None:
    """Make an empty file that is the user's alone where there is none, for a library that would make one that
    others may read. A file that is there is left as it is. Raises OSError."""
    if not os.path.lexists(path):
        os.close(open_regular(path, os.O_WRONLY | os.O_CREAT))


def write_private(path: Path, text: str) -> None:
    """Write a file that is the user's alone, in place of what was in it. Raises OSError."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)


def private_opener(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is the user's alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _check(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
