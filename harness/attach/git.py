"""The commit of the repository with a script."""

import subprocess
from pathlib import Path

_DEADLINE_S = 2.0


def read_commit(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit checked out at `folder`, and whether tracked files differ from it; None for what git
    does not know."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None, None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
