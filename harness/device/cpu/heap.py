"""The memory of glibc's malloc: "allocated" on the CPU, read in about a microsecond with warm caches.

torch's CPU allocator takes every tensor from malloc, so `mallinfo2` (glibc ≥ 2.33) counts each byte of it. It
also counts the interpreter and other libraries, so a baseline is subtracted. The call walks malloc's free
lists: with 100,000 free chunks it takes milliseconds. `harness.watch.memory` reads less often then.
"""

import ctypes
import os
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`; all sizes in bytes."""

    _fields_ = tuple(  # The name that ctypes requires.
        (name, ctypes.c_size_t)
        for name in (
            "arena",  # in malloc's heaps, in use and free
            "ordblks",
            "smblks",
            "hblks",  # individually mapped blocks
            "hblkhd",  # in those
            "usmblks",
            "fsmblks",
            "uordblks",  # of `arena`: in use
            "fordblks",  # of `arena`: free
            "keepcost",
        )
    )


class HeapInfo(Protocol):
    """The fields of `Mallinfo2` in use."""

    arena: int
    hblks: int
    hblkhd: int
    uordblks: int


class HeapSize(NamedTuple):
    """Bytes of malloc: allocated and not freed, those together with free ones, and SQLite's among the first;
    or a difference of two sizes."""

    in_use_bytes: int = 0
    total_bytes: int = 0
    sqlite_bytes: int = 0

    def plus(self, other: "HeapSize") -> "HeapSize":
        """Return the sum."""
        return HeapSize(*(one + another for one, another in zip(self, other, strict=True)))

    def minus(self, other: "HeapSize") -> "HeapSize":
        """Return the difference."""
        return HeapSize(*(one - another for one, another in zip(self, other, strict=True)))


class Heap(NamedTuple):
    """glibc's malloc, bound once. Both calls retain the interpreter lock: they are short, and releasing the
    lock could delay the training thread by more than the call."""

    info: Callable[[], HeapInfo]
    # `malloc_trim(padding)`: returns free pages to the system; the result is 1 if there were any.
    trim: Callable[[int], int]


_PROBE_BYTES = 1 << 20
# A thread of torch's may free memory during a probe.
_MOST_PROBES = 5


def open_heap() -> Heap | None:
    """Return the process's malloc, or None when it cannot be read: without glibc ≥ 2.33 (macOS, musl), or
    with another allocator (jemalloc, tcmalloc), which a test allocation detects."""
    library = ctypes.PyDLL(None)
    try:
        info, trim, malloc, free = library.mallinfo2, library.malloc_trim, library.malloc, library.free
    except AttributeError:
        return None
    info.restype, info.argtypes = Mallinfo2, ()
    trim.restype, trim.argtypes = ctypes.c_int, (ctypes.c_size_t,)
    malloc.restype, malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    free.restype, free.argtypes = None, (ctypes.c_void_p,)
    for _ in range(_MOST_PROBES):
        before = in_use(info())
        block = malloc(_PROBE_BYTES)
        growth_bytes = in_use(info()) - before
        free(block)
        if growth_bytes >= _PROBE_BYTES:
            return Heap(info, trim)
    return None


_M_ARENA_MAX = -8
_ARENAS = 2


def share_arenas() -> None:
    """Make all later threads of this process share one malloc arena, besides that of the first thread.

    `mallinfo2` visits every arena, 0.25 µs each, and glibc gives each thread its own: with the writer, the
    samplers and torch's pool a reading would take 2 µs instead of 0.5 µs. Those threads allocate little, so
    there is hardly any contention. Call this before they start; does nothing without glibc.
    """
    try:
        mallopt = ctypes.PyDLL(None).mallopt
    except AttributeError:
        return
    mallopt.restype, mallopt.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.c_int)
    mallopt(_M_ARENA_MAX, _ARENAS)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Under a memory cap, blocks of at least this size are mapped individually.
SEPARATE_BYTES = 64 << 10
_has_separated = False


def separate_large_blocks() -> None:
    """Make malloc map every large block individually and return it when freed, so that the heap stays near
    the bytes in use: by default, gaps of up to 32 MiB remain between blocks. Each large block then takes a
    system call and new pages. Does nothing without glibc."""
    global _has_separated
    try:
        mallopt = ctypes.PyDLL(None).mallopt
    except AttributeError:
        return
    mallopt.restype, mallopt.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.c_int)
    mallopt(_M_MMAP_THRESHOLD, SEPARATE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, SEPARATE_BYTES)
    _has_separated = True


def separates_large_blocks() -> bool:
    """Return whether malloc maps every large block individually: by `separate_large_blocks`, or by glibc's
    settings in the environment of the process."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return _has_separated or "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold=" in tunables


def in_use(info: HeapInfo) -> int:
    """Return the bytes allocated and not freed."""
    return info.uordblks + info.hblkhd


def heap_bytes(info: HeapInfo) -> int:
    """Return malloc's bytes, in use or free: the memory available without a request to the system."""
    return info.arena + info.hblkhd


# For an aligned block, such as a tensor's, malloc needs up to so much more. It gives that back, so that the
# hole that the block leaves is too small for another one.
_ALIGNMENT_BYTES = 128
# No address space has so much. Before it gives up it sorts what was freed into bins by size, in every arena.
_IMPOSSIBLE_BYTES = 1 << 60
# Some 250 bins of two arenas, of about 70 letters each.
_MOST_TEXT = 1 << 16
_BIN = re.compile(rb'<(?:size|unsorted) from="(\d+)" to="(\d+)" total="(\d+)" count="(\d+)"')


def large_hole_bytes(size_bytes: int) -> int | None:
    """Return a lower bound of malloc's free memory in holes that an aligned block of `size_bytes` fits into,
    without the end of each arena; None where malloc cannot be read."""
    library = ctypes.PyDLL(None)
    try:
        malloc, write, close = library.malloc, library.malloc_info, library.fclose
        open_text = library.fmemopen
    except AttributeError:
        return None
    malloc.restype, malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    open_text.restype = ctypes.c_void_p
    open_text.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    write.argtypes, close.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
    text = ctypes.create_string_buffer(_MOST_TEXT)
    malloc(_IMPOSSIBLE_BYTES)
    file = open_text(text, _MOST_TEXT, b"w")
    if file is None:
        return None
    write(0, file)
    close(file)
    return bytes_in_holes(text.value, size_bytes + _ALIGNMENT_BYTES)


def bytes_in_holes(malloc_info: bytes, least_bytes: int) -> int | None:
    """Return a lower bound of the free bytes in holes of `least_bytes` or more, by the text of `malloc_info`;
    None if it has no bins.

    A bin states its smallest and largest hole, their sum and their number. Where some are smaller, which the
    last bin of an arena has beside holes of any size, all but the largest may be just too small.
    """
    bins = [tuple(map(int, numbers)) for numbers in _BIN.findall(malloc_info)]
    total_bytes = 0
    for smallest, largest, total, count in bins:
        if smallest >= least_bytes:
            total_bytes += total
        elif largest >= least_bytes:
            total_bytes += max(largest, total - (count - 1) * least_bytes)
    return total_bytes if bins else None


# Enough for the 10th and the 90th percentile.
FORWARD_ENDS = 64


class HeapMeter:
    """Allocated bytes above a baseline, and their peak since the last reading.

    The peak is a lower bound: the highest value at `note`, at `read` and at `sample`, which another thread
    calls; memory allocated and freed between two readings is not included.

    Attributes:
        forward_ends: of the newest windows with a `note`, the first of these, above the reading (or below it:
            negative). A window has the notes of one step, the first of them at the end of a forward pass.
    """

    def __init__(self, heap: Heap) -> None:
        self._info = heap.info
        self._baseline = self._begun = 0
        self._peak = 0
        self._window = 0
        self._sampled = (0, 0)
        self._first_note = 0
        # A list, as another thread copies it: a deque raises where it grows meanwhile.
        self.forward_ends: list[int] = []

    def begin(self) -> None:
        """Set the current in-use bytes as the baseline."""
        self._baseline = self._begun = in_use(self._info())

    def raise_baseline(self, by_bytes: int) -> None:
        """Count so many bytes more as in use before the beginning."""
        self._begun += by_bytes
        self._baseline += by_bytes

    def leave_out(self, grown_bytes: int) -> None:
        """Count `grown_bytes`, of what is in use since the beginning, as a part of the baseline."""
        self._baseline = self._begun + grown_bytes

    def note(self) -> None:
        """Read once, on the training thread."""
        info = self._info()
        used = info.uordblks + info.hblkhd
        if not self._peak:
            self._first_note = used
        if used > self._peak:
            self._peak = used

    def sample(self) -> None:
        """Read once, from one other thread. The value belongs to the window in which the reading began."""
        window = self._window
        used = in_use(self._info())
        sampled_window, peak = self._sampled
        if sampled_window != window or used > peak:
            self._sampled = (window, used)

    def begin_peak(self) -> int | None:
        """Start a new peak window; return the peak of the one before in bytes above the baseline, by what was
        read in it; None: nothing was, or nothing above the baseline."""
        window, peak = self._window, self._peak
        self._window = window + 1
        self._peak = 0
        sampled_window, sampled = self._sampled
        if sampled_window == window:
            peak = max(peak, sampled)
        return peak - self._baseline if peak >= self._baseline and peak else None

    def read(self) -> tuple[int | None, int | None]:
        """Return (allocated, peak) in bytes above the baseline, and start a new peak window. None: below it,
        as the process has freed more of what was in use before than it has allocated since."""
        window = self._window
        self._window = window + 1
        info = self._info()
        used = info.uordblks + info.hblkhd
        peak = self._peak if self._peak > used else used
        if self._peak:
            self.forward_ends.append(self._first_note - used)
            del self.forward_ends[:-FORWARD_ENDS]
        sampled_window, sampled = self._sampled
        if sampled_window == window and sampled > peak:
            peak = sampled
        self._peak = 0
        baseline = self._baseline
        return used - baseline if used >= baseline else None, peak - baseline if peak >= baseline else None
