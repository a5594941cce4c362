"""What glibc's malloc holds: the CPU's "allocated" memory, read in well under a microsecond.

torch's CPU allocator takes every tensor from malloc, so `mallinfo2` (glibc ≥ 2.33) sees each byte of it; it
also sees what the interpreter and other libraries take, which is why a level is subtracted. The call walks
malloc's free lists: with 100,000 free chunks it is slow, and `HeapMeter` then reads rarely instead of slowing
the training down.
"""

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`; all sizes in bytes."""

    _fields_ = tuple(  # ctypes wants it like this
        (name, ctypes.c_size_t)
        for name in (
            "arena",  # in the heaps malloc extends, used and free
            "ordblks",
            "smblks",
            "hblks",  # blocks mapped one by one
            "hblkhd",  # in those
            "usmblks",
            "fsmblks",
            "uordblks",  # of `arena`: in use
            "fordblks",  # of `arena`: free
            "keepcost",
        )
    )


class HeapInfo(Protocol):
    """The fields of `Mallinfo2` that are read."""

    arena: int
    hblks: int
    hblkhd: int
    uordblks: int


class Heap(NamedTuple):
    """glibc's malloc, bound once. Both calls keep the interpreter lock: they are short, and giving the lock
    away could cost the training thread more than the call."""

    info: Callable[[], HeapInfo]
    # `malloc_trim(padding)`: gives free pages back to the system; returns 1 when it gave any.
    trim: Callable[[int], int]


_PROBE_BYTES = 1 << 20


def open_heap() -> Heap | None:
    """The process's malloc, or None where it cannot be read: no glibc ≥ 2.33 (macOS, musl), or another
    allocator in its place (jemalloc, tcmalloc), found out by allocating and watching the figure."""
    library = ctypes.PyDLL(None)
    try:
        info, trim, malloc, free = library.mallinfo2, library.malloc_trim, library.malloc, library.free
    except AttributeError:
        return None
    info.restype, info.argtypes = Mallinfo2, ()
    trim.restype, trim.argtypes = ctypes.c_int, (ctypes.c_size_t,)
    malloc.restype, malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    free.restype, free.argtypes = None, (ctypes.c_void_p,)
    before = in_use(info())
    block = malloc(_PROBE_BYTES)
    grown = in_use(info()) - before
    free(block)
    return Heap(info, trim) if grown >= _PROBE_BYTES else None


_M_ARENA_MAX = -8
_ARENAS = 2


def share_arenas() -> None:
    """Let all further threads of this process share one arena of malloc beside the first thread's.

    `mallinfo2` visits every arena, 0.25 µs each, and glibc gives each thread one of its own: with the writer,
    the samplers and torch's pool a reading would cost 2 µs instead of 0.5 µs. Those threads allocate little,
    so they hardly wait for each other. Call it before they start; does nothing without glibc.
    """
    try:
        mallopt = ctypes.PyDLL(None).mallopt
    except AttributeError:
        return
    mallopt.restype, mallopt.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.c_int)
    mallopt(_M_ARENA_MAX, _ARENAS)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Blocks of this size and more are mapped one by one under a memory cap.
SEPARATE_BYTES = 64 << 10


def separate_large_blocks() -> None:
    """Have malloc map every large block by itself and give it back when it is freed, so that what the process
    holds stays near what is in use: by default, holes of up to 32 MiB remain between blocks. Each large block
    then costs a system call and fresh pages. Does nothing without glibc."""
    try:
        mallopt = ctypes.PyDLL(None).mallopt
    except AttributeError:
        return
    mallopt.restype, mallopt.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.c_int)
    mallopt(_M_MMAP_THRESHOLD, SEPARATE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, SEPARATE_BYTES)


def in_use(info: HeapInfo) -> int:
    """Bytes handed out and not yet freed."""
    return info.uordblks + info.hblkhd


def held(info: HeapInfo) -> int:
    """Bytes malloc holds, handed out or free: what can be used without asking the system for more."""
    return info.arena + info.hblkhd


_SLOW_NS = 50_000
_FAST_NS = 25_000
# One slow call may have found cold caches; three have not.
_SLOW_IN_A_ROW = 3
_TIMED_EVERY_NS = 10_000_000
# Calls are slow when they take more than one part in 200 (0.5 %) of the time between two readings; while they
# are, no more than that goes into them.
_RARE_SHARE = 200


class HeapMeter:
    """Allocated bytes above a level, and their peak since the last reading.

    The peak is a lower bound: it is the highest of what was seen at `note`, at `read` and by the thread that
    calls `sample`; what came and went between two looks is not in it.
    """

    def __init__(self, heap: Heap, cpu_ns: Callable[[], int] = time.thread_time_ns) -> None:
        """`cpu_ns` tells the calling thread's processor time: on a busy machine a call that was only
        interrupted is not a slow one."""
        self._info = heap.info
        self._cpu_ns = cpu_ns
        self._level = 0
        self._peak = 0
        self._window = 0
        self._sampled = (0, 0)
        self._rare = False
        self._slow_calls = 0
        self._due_ns = 0
        self._read_ns = 0

    def begin(self) -> None:
        """Take what is in use now as the level from which the rest is counted."""
        self._level = in_use(self._info())

    def note(self) -> None:
        """Look once, on the training thread."""
        if self._rare:
            return
        info = self._info()
        used = info.uordblks + info.hblkhd
        if used > self._peak:
            self._peak = used

    def sample(self) -> None:
        """Look once, from one other thread. What it saw is bound to the window in which it began to look."""
        if self._rare:
            return
        window = self._window
        used = in_use(self._info())
        seen, peak = self._sampled
        if seen != window or used > peak:
            self._sampled = (window, used)

    def read(self, now_ns: int) -> tuple[int | None, int | None]:
        """(allocated, peak) in bytes above the level, and a new window for the peak.

        `now_ns` is the present on the monotonic clock. While calls are slow the peak is None, as nobody
        looked for it, and so is what is allocated until the next call is due.
        """
        window = self._window
        self._window = window + 1
        due = now_ns >= self._due_ns
        looked = not self._rare
        if not looked and not due:
            return None, None
        began_ns = self._cpu_ns() if due else 0
        info = self._info()
        used = info.uordblks + info.hblkhd
        if due:
            self._weigh(now_ns, self._cpu_ns() - began_ns)
        peak = self._peak if self._peak > used else used
        seen, sampled = self._sampled
        if seen == window and sampled > peak:
            peak = sampled
        self._peak = 0
        self._read_ns = now_ns
        level = self._level
        allocated = used - level if used > level else 0
        return allocated, (peak - level if peak > level else 0) if looked else None

    def _weigh(self, now_ns: int, cost_ns: int) -> None:
        if cost_ns > _SLOW_NS and cost_ns * _RARE_SHARE > now_ns - self._read_ns:
            self._slow_calls += 1
            self._rare = self._rare or self._slow_calls >= _SLOW_IN_A_ROW
        else:
            self._slow_calls = 0
            self._rare = self._rare and cost_ns > _FAST_NS
        pause_ns = cost_ns * _RARE_SHARE if self._rare else 0
        self._due_ns = now_ns + max(_TIMED_EVERY_NS, pause_ns)
