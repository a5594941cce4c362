"""The Python environment of the server, for commands that a person copies into a shell."""

import shlex
import shutil
import sys
from pathlib import Path

_COMMAND = "stepscope"


def activation() -> str | None:
    """Return the shell command that activates the server's environment, if `stepscope` is not on the server's
    PATH, as after `make run`; None if it is, or if the environment has no such command."""
    folder = Path(sys.executable).parent
    if shutil.which(_COMMAND) or not (folder / "activate").is_file() or not (folder / _COMMAND).is_file():
        return None
    return f"source {shlex.quote(str(folder / 'activate'))}"
