"""The control groups of this process, version 1 or 2: the limits of containers and batch jobs."""

import os
from pathlib import Path


def group_files(controller: str, name: str, name_in_v1: str, root: Path = Path("/")) -> list[Path]:
    """Return the files `name` (in version 1 `name_in_v1`) that exist in the groups of this process under
    `controller` and in their ancestors, the group itself first. `root` is the file system's root (a folder in
    tests)."""
    try:
        memberships = os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines()
    except OSError:
        return []
    files = []
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            hierarchy, file = root / "sys/fs/cgroup", name
        elif controller in controllers.split(","):
            hierarchy, file = root / "sys/fs/cgroup" / controller, name_in_v1
        else:
            continue
        group = hierarchy / path.strip("/")
        for folder in (group, *group.parents):
            files.append(folder / file)
            if folder == hierarchy:
                break
    return [file for file in files if file.exists()]


def read_numbers(path: Path) -> list[int] | None:
    """Return the numbers in a file; None if it cannot be read or has none: "max" and -1 are no limit."""
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return list(map(int, words)) if words and all(map(str.isdigit, words)) else None
