"""The library of faults (shim.c): compiled once, loaded before everything else, armed from within."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

OBSTACLE = (
    None
    if sys.platform == "linux" and shutil.which("cc") is not None
    else "the library of faults needs Linux, glibc and a C compiler"
)
"""Why there can be no such library here; None: there can."""


def compile_shim(folder: Path) -> Path:
    """Compile the library into `folder`. Raises CalledProcessError."""
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def fail_writes(first: int, count: int, error: int) -> None:
    """Let the calls that write this process's log fail with the errno `error`: so many, from the first-th."""
    _library().stepscope_fail_writes(ctypes.c_long(first), ctypes.c_long(count), error)


def failed_writes() -> int:
    """Return how many calls failed so far."""
    return int(_library().stepscope_failed_calls())


def write_calls() -> int:
    """Return how many calls would have written the log since `fail_writes`."""
    return int(_library().stepscope_write_calls())


def shift_clock(seconds: int) -> None:
    """Let this process's wall clock run so much ahead of the machine's; negative: behind."""
    _library().stepscope_shift_clock(ctypes.c_long(seconds))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    for name in ("stepscope_failed_calls", "stepscope_write_calls"):
        getattr(library, name).restype = ctypes.c_long
    return library
