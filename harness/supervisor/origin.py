"""The origin of a run as text: the command of a script's run, and the versions it ran with."""

import shlex
from collections.abc import Mapping
from typing import Any

from harness import words
from harness.records.script import ScriptOrigin

# A script runs in its own terminal, and Stepscope does not copy its streams.
NO_OUTPUT = "n/a: the script's output went to its own terminal"
_COMMIT_CHARACTERS = 12
_LONGEST_VERSION = 80


def script_line(origin: ScriptOrigin) -> str:
    """Return the script and its arguments: "train.py --epochs 3"."""
    return " ".join([origin.command, *map(shlex.quote, origin.arguments)])


def command_line(origin: ScriptOrigin) -> str:
    """Return the command that starts the same run in a shell."""
    return f"stepscope run {script_line(origin)}"


def origin_facts(origin: ScriptOrigin) -> list[tuple[str, str]]:
    """Return name and text of each fact about a script's run."""
    return [
        ("script", words.printable(origin.command)),
        ("arguments", words.printable(shlex.join(origin.arguments)) or "none"),
        ("working folder", words.printable(origin.folder)),
        ("git commit", _commit(origin)),
        ("interpreter", words.printable(origin.python)),
    ]


def _commit(origin: ScriptOrigin) -> str:
    if origin.git_commit is None:
        return f"{words.NOT_AVAILABLE}: the script is in no git repository"
    commit = words.printable(origin.git_commit)[:_COMMIT_CHARACTERS]
    return f"{commit}, with uncommitted changes" if origin.git_is_dirty else commit


def environment_text(versions: Mapping[str, Any]) -> str:
    """Return the versions of a run: "Python 3.12.3, torch 2.7.0"."""
    names = (("Python", "python"), ("torch", "torch"), ("CUDA", "cuda"), ("cuDNN", "cudnn"))
    present = [(label, versions[key]) for label, key in names if versions.get(key) is not None]
    texts = [
        f"{label} {words.clip(words.printable(str(value)), _LONGEST_VERSION)}" for label, value in present
    ]
    return ", ".join(texts) or words.NOT_AVAILABLE
