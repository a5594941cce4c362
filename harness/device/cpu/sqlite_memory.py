"""The memory of SQLite in this process, by which the log is written.

It grows by 0.7 MiB in the first seconds of a run (its page caches: by up to 2 MiB each), which are from
malloc, as tensors are on the CPU, and no part of what the training allocates.
"""

import ctypes
from collections.abc import Callable
from importlib import import_module


def open_sqlite_memory() -> Callable[[], int]:
    """Return a function that returns the bytes in use by SQLite (`sqlite3_memory_used`); always 0 where it
    does not count them, or where the library of Python's module is not at hand."""
    try:
        used = ctypes.PyDLL(import_module("_sqlite3").__file__).sqlite3_memory_used
    except (ImportError, AttributeError, OSError):
        return lambda: 0
    used.restype, used.argtypes = ctypes.c_int64, ()
    read: Callable[[], int] = used
    return read
