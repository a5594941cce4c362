"""Opening and reading untrusted files of a run's folder: only regular files, up to a size limit.

Opening a named pipe waits for its other end, and reading a device never ends. So files are opened without
waiting, and the kind is checked on the open descriptor. Symbolic links are rejected too, because a copied
folder must not expose files from elsewhere. Every rejection is an OSError, as for a missing file.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress
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
    """Open the regular file at `path`; a file that `flags` create is private to the user.

    Never waits. Raises OSError for any other kind of file.
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
    """Raise OSError when `path` is something other than a regular file; a missing file is fine."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    _check(mode, path)


def read_start(path: Path, most_bytes: int) -> bytes:
    """Read the first `most_bytes` of the regular file at `path`, or all of it. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most_bytes)


def read_end(path: Path, most_bytes: int) -> bytes:
    """Read the last `most_bytes` of the regular file at `path`, or all of it. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes)


def read_whole(path: Path, most_bytes: int) -> bytes:
    """Read the regular file at `path`. Raises OSError, also when it is larger than `most_bytes`."""
    content = read_start(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content


def create_private(path: Path) -> None:
    """Create an empty file that is private to the user, for a library that would create one that others may
    read. An existing file is left as it is. Raises OSError."""
    if not os.path.lexists(path):
        os.close(open_regular(path, os.O_WRONLY | os.O_CREAT))


def write_private(path: Path, text: str) -> None:
    """Write a file that is private to the user, replacing its content. Raises OSError."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)


def replace_private(path: Path, text: str) -> None:
    """Replace the file at `path` at once by one that is private to the user, so that a reader never gets half
    of it. Raises OSError, and then leaves the file as it was."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        write_private(draft, text)
        os.replace(draft, path)
    except OSError:
        # On a read-only file system the removal fails too, also of a file that does not exist.
        with suppress(OSError):
            draft.unlink()
        raise


def private_opener(path: str, flags: int) -> int:
    """An `opener` for `open` that creates files private to the user."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _check(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
