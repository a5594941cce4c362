"""Which Python functions a stack shows, and how."""

import sys
from collections.abc import Callable

from harness.profiling.events import FRAME

# Packages whose functions nobody looks for in their own program.
_HIDDEN = frozenset({"torch", *sys.stdlib_module_names})
# What takes the profile: PyTorch never sees the end of the functions in which it was told of a new step.
_OWN = ("harness/profiling/", "harness/train/profiles.py", "harness/train/control.py", "harness/observers/")


def shown(name: str, shorten: Callable[[str], str]) -> str | None:
    """A function as "file:line function", the line being its first; None for built-in ones and those of
    Python's and PyTorch's libraries. `shorten` takes a person's folders out of a path."""
    found = FRAME.match(name)
    if found is None or found["file"].startswith("<"):
        return None
    file = shorten(found["file"])
    if file.partition("/")[0].removesuffix(".py") in _HIDDEN or file.startswith(_OWN):
        return None
    return f"{file}:{found['line']} {found['function']}"
