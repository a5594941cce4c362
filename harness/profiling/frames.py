"""Selection and format of the Python functions in a stack."""

import sys
from collections.abc import Callable

from harness.profiling.events import FRAME

# Packages whose functions are hidden.
_HIDDEN = frozenset({"torch", *sys.stdlib_module_names})
# The code that takes the profile: the profiler misses the end of functions in which a step begins.
_OWN = ("harness/profiling/", "harness/watch/")


def frame_name(name: str, shorten: Callable[[str], str]) -> str | None:
    """Format a function as "file:line function" with its first line; return None for built-in functions and
    those of Python's and PyTorch's libraries. `shorten` removes home folders from a path."""
    match = FRAME.match(name)
    if match is None or match["file"].startswith("<"):
        return None
    file = shorten(match["file"])
    if file.partition("/")[0].removesuffix(".py") in _HIDDEN or file.startswith(_OWN):
        return None
    return f"{file}:{match['line']} {match['function']}"
