"""Starting training processes, and helpers that outlive the page that requested them.

Children get a new session and no parent-death signal (which is sent when the spawning *thread* ends, and the
page's threads are short-lived), so a run survives the dashboard and the shell.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import harness
from harness.files.regular import private_opener
from harness.identity import NONCE_VARIABLE
from harness.records.script import ScriptOrigin
from harness.store.folder import RunFolder


class Process(Protocol):
    """A child process; `subprocess.Popen` implements it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def poll(self) -> int | None:
        """Return its exit code (negative: the signal), None while it runs. Never waits."""
        ...

    def wait(self) -> int:
        """Wait for its exit and return the code."""
        ...


# Starts a command with an environment, its output appended to a file. Raises OSError.
Spawn = Callable[[list[str], Mapping[str, str], Path], Process]


def training_command(folder: RunFolder) -> list[str]:
    """Return the command line of a run's training process."""
    return [*_harness(), "_run", str(folder.path)]


def stop_command(folder: RunFolder, undelivered: str | None = None) -> list[str]:
    """Return the command line of the helper that escalates a stop. `undelivered` is the reason that the stop
    command was not sent, so that the helper begins with signals."""
    words = [*_harness(), "stop", "--escalate", "--home", str(folder.path.parent.parent)]
    if undelivered is not None:
        words.append(f"--undelivered={undelivered}")
    return [*words, "--", folder.run_id]


def tune_command(home: Path, tune_id: str) -> list[str]:
    """Return the command line of the process that runs a tune."""
    return [*_harness(), "tune", "--home", str(home), "--resume", tune_id]


def queue_command(home: Path) -> list[str]:
    """Return the command line of the worker of a home's queue."""
    return [*_harness(), "queue", "run", "--home", str(home)]


def script_command(folder: RunFolder, origin: ScriptOrigin) -> list[str]:
    """Return the command line of the process that runs a script in a run folder that exists."""
    return [*_harness(origin.python), "run", "--into", str(folder.path), *_words(origin)]


def plain_command(origin: ScriptOrigin) -> list[str]:
    """Return the command line of a script without Stepscope."""
    return [origin.python, *_words(origin)]


def _words(origin: ScriptOrigin) -> list[str]:
    # A module's command is "-m NAME".
    script = origin.command.split(" ", 1) if origin.command.startswith("-m ") else [origin.command]
    return [*script, *origin.arguments]


def _harness(python: str = sys.executable) -> list[str]:
    # -P: modules in the current directory (such as the user's own random.py) are not imported.
    return [python, "-P", "-m", "harness"]


def child_environment(environ: Mapping[str, str], nonce: str) -> dict[str, str]:
    """Return the environment of a training process: its parent's without Streamlit's variables, unbuffered,
    with its nonce, and with this package on the path even if it is not installed."""
    child = {name: value for name, value in environ.items() if not name.startswith("STREAMLIT_")}
    child[NONCE_VARIABLE] = nonce
    child["PYTHONUNBUFFERED"] = "1"
    root = Path(harness.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), *filter(None, child.get("PYTHONPATH", "").split(os.pathsep))]
        child["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return child


def spawn(
    command: list[str],
    environ: Mapping[str, str],
    output: Path,
    before_command: Callable[[], object] | None = None,
) -> Process:
    """Start `command` in a new session, with both streams appended to `output`. `before_command` is called in
    the child. Raises OSError."""
    with open(output, "ab", opener=private_opener) as stream:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_command,
        )
