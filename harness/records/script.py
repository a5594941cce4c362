"""The origin of a run that trains a person's own script."""

from typing import NamedTuple


class ScriptOrigin(NamedTuple):
    """The command of a script's run, and where it was started."""

    # As typed: "train.py", or "-m package.train".
    command: str
    # The arguments of the script.
    arguments: tuple[str, ...]
    # The working folder.
    folder: str
    # The Python interpreter.
    python: str
    # The commit of the script's git repository, and whether tracked files differ from it; None outside one.
    git_commit: str | None
    git_is_dirty: bool | None
