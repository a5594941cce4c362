"""The file system of a path, and whether SQLite's write-ahead log works on it."""

import re
from pathlib import Path

from harness.errors import HomeError

_MOUNTINFO = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "beegfs", "ceph", "gpfs", "lustre", "ncpfs"}
)


def file_system(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system of `path` ("ext4", "nfs4", "fuse.sshfs"), None if unknown.

    `mountinfo` is the text of /proc/self/mountinfo (proc_pid_mountinfo(5)): the fifth field is the mount
    point, with octal escapes, and the type follows a single dash. The longest mount point that contains
    `path` counts, and of several on one point the last, which hides the others.
    """
    kind, depth = None, -1
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:] or len(fields) < 9:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = fields[fields.index("-", 6) + 1], len(point.parts)
    return kind


def is_network(kind: str) -> bool:
    """Return whether a file system of this type may lie on another machine, where the write-ahead log's
    shared memory does not work. FUSE counts as such: what is behind it cannot be known."""
    return kind in _NETWORK or kind == "fuse" or kind.startswith("fuse.")


def refuse_network(path: Path, mountinfo: str | None = None) -> None:
    """Raise HomeError when `path` lies on a network file system. `mountinfo` stands in for the system's own
    table; where there is none (no Linux), nothing is refused."""
    if mountinfo is None:
        try:
            mountinfo = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return
    kind = file_system(path.resolve(), mountinfo)
    if kind is not None and is_network(kind):
        raise HomeError(
            f"{path} lies on a network file system ({kind}), where a log cannot be written safely; "
            "choose a folder on a local disk with --home or STEPSCOPE_HOME."
        )
