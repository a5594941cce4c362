"""The paths that the pages for developers name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Paths are relative to the repository or to one of its packages.
BASES = (ROOT, ROOT / "harness", ROOT / "dashboard", ROOT / "docs")


def test_every_path_in_the_table_of_changes_exists() -> None:
    text = (ROOT / "docs" / "where-a-change-goes.md").read_text()
    paths = [path.replace("…", "").rstrip("*") for path in re.findall(r"`([\w…*]+(?:/[\w…*.]*)+)`", text)]
    assert len(paths) > 40
    missing = [path for path in paths if not any(found(base, path) for base in BASES)]
    assert missing == []


def found(base: Path, path: str) -> bool:
    """Whether there is a file or folder of this name, or one that begins with it."""
    whole = base / path
    return whole.exists() or any(whole.parent.glob(f"{whole.name}*"))
