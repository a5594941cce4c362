"""Starting a training process, and helpers that outlive the page that asked for them.

Children get a session of their own and no parent-death signal (that one fires when the spawning *thread*
ends, and the page's threads are short-lived), so a run survives the dashboard and the shell.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import harness
from harness.identity import NONCE_VARIABLE
from harness.regular_files import private_opener
from harness.store.folder import RunFolder


class Process(Protocol):
    """What the supervisor needs of a child process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def poll(self) -> int | None:
        """How it ended (negative: by which signal), None while it runs. Never waits."""
        ...

    def wait(self) -> int:
        """Wait for its end."""
        ...


# Starts a command with an environment, its output appended to a file. Raises OSError.
Spawn = Callable[[list[str], Mapping[str, str], Path], Process]


def training_command(folder: RunFolder) -> list[str]:
    """The command line of a run's training process."""
    return [*_harness(), "_run", str(folder.path)]


def stop_command(folder: RunFolder, undelivered: str | None = None) -> list[str]:
    """The command line of the helper that sees a stop through to its end. `undelivered` says why the run was
    not sent the stop command, so that the helper begins with signals."""
    words = [*_harness(), "stop", "--escalate", "--home", str(folder.path.parent.parent)]
    if undelivered is not None:
        words.append(f"--undelivered={undelivered}")
    return [*words, "--", folder.run_id]


def _harness() -> list[str]:
    # -P: what lies in the current directory (a person's own random.py) is not imported by accident.
    return [sys.executable, "-P", "-m", "harness"]


def child_environment(environ: Mapping[str, str], nonce: str) -> dict[str, str]:
    """The environment of a training process: its parent's without Streamlit's own variables, unbuffered, with
    its nonce, and able to find this package even when it was never installed."""
    child = {name: value for name, value in environ.items() if not name.startswith("STREAMLIT_")}
    child[NONCE_VARIABLE] = nonce
    child["PYTHONUNBUFFERED"] = "1"
    root = Path(harness.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), *filter(None, child.get("PYTHONPATH", "").split(os.pathsep))]
        child["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return child


def spawn(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
    """Start `command` in a session of its own, both its streams appended to `output`. Raises OSError."""
    with open(output, "ab", opener=private_opener) as stream:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
