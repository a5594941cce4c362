"""The resident set size (RSS) of this process: a cheap reading for every step, and a peak with a reset.

On Linux both come from /proc; elsewhere psutil gives the RSS and there is no peak. The files belong to the
process that opened them: a forked child must open its own.
"""

import os
import resource
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import psutil

_STATM = Path("/proc/self/statm")
_EVERY_NS = 10_000_000


class RssGauge:
    """This process's RSS, read at most every 10 ms; in between the last value is returned."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._measure = _statm_reader(self) if _STATM.exists() else _psutil_rss
        self._bytes = 0
        self._due_ns = clock_ns()

    def read(self) -> int:
        """Return the RSS in bytes."""
        now_ns = self._clock_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self._bytes = self._measure()
        return self._bytes

    def expire(self) -> None:
        """Read again at the next call, because the RSS has just changed."""
        self._due_ns = 0


def _statm_reader(owner: object) -> Callable[[], int]:
    fd = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    weakref.finalize(owner, os.close, fd)
    page_bytes = resource.getpagesize()
    return lambda: int(os.pread(fd, 64, 0).split(None, 2)[1]) * page_bytes


def _psutil_rss() -> int:
    return int(psutil.Process().memory_info().rss)


class PeakRss:
    """The highest RSS since the last reading, from the kernel (Linux ≥ 4.0). One object per process: a
    reading resets the kernel's high-water mark."""

    def __init__(self, folder: Path = Path("/proc/self")) -> None:
        self._status = folder / "status"
        self._clear = folder / "clear_refs"

    def take(self) -> int | None:
        """Return the peak in bytes since the last `take` (or the start of the process), and reset it. None if
        it is unavailable or cannot be reset."""
        peak_bytes = status_bytes("VmHWM", self._status)
        try:
            self._clear.write_bytes(b"5")
        except OSError:
            return None
        return peak_bytes


def status_bytes(field: str, path: Path = Path("/proc/self/status")) -> int | None:
    """Return a memory field of /proc/self/status ("VmHWM", "VmData", …) in bytes; None if it is missing."""
    try:
        text = path.read_text(errors="replace")  # The name of the process is any bytes.
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None
