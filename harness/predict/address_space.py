"""The most that a piece of work takes beside what it returns, read from the kernel's record of address space.

`VmPeak` in /proc/self/status is the most address space that the process ever had, to the page. An empty
mapping fills the gap between it and what the process has now, so that whatever is allocated next raises it.
With malloc set to take every block of 16 KiB and more from the system by itself, that is exact; nothing is
sampled.
"""

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar

from harness.device.cpu.heap import Heap, in_use

Result = TypeVar("Result")

_LARGE_BYTES = 16 << 10
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x2 | 0x20 | 0x4000
_MOST_HOLES = 1 << 20


class AddressSpace:
    """This process's own. Sets malloc up for good when made, so it is for a process that does nothing else.
    Used by one thread, while no other allocates."""

    def __init__(self, heap: Heap) -> None:
        """`heap`: this process's malloc. Raises OSError where /proc is not there."""
        self._heap = heap
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._library = ctypes.PyDLL(None, use_errno=True)
        self._library.mmap.restype = ctypes.c_void_p
        self._library.mmap.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        )
        self._library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._library.malloc.restype, self._library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        self._filler: tuple[int, int] | None = None
        self._separate_blocks()

    @property
    def in_use_bytes(self) -> int:
        """What malloc has handed out."""
        return in_use(self._heap.info())

    def measure(self, call: Callable[[], Result]) -> tuple[int, Result]:
        """Run `call`; the bytes it took at its fullest beyond those left when it returned (its result among
        them), and its result. Raises what `call` raises."""
        self._fill_gap()
        result = call()
        peak_bytes, now_bytes = self._sizes()
        return peak_bytes - now_bytes, result

    def _separate_blocks(self) -> None:
        """Have malloc map large blocks one by one, give every free page back, and use no free chunk that is
        there already: each that is large enough is taken and never given back."""
        for option, value in (
            (_M_MMAP_THRESHOLD, _LARGE_BYTES),
            (_M_TOP_PAD, 0),
            (_M_TRIM_THRESHOLD, 0),
            (_M_ARENA_MAX, 1),
        ):
            self._library.mallopt(ctypes.c_int(option), ctypes.c_int(value))
        self._heap.trim(0)
        mapped = self._heap.info().hblks
        for _ in range(_MOST_HOLES):
            self._library.malloc(_LARGE_BYTES)
            if self._heap.info().hblks > mapped:
                break

    def _fill_gap(self) -> None:
        """Map as much, without using it, as the process is below its highest."""
        if self._filler is not None:
            self._library.munmap(*self._filler)
            self._filler = None
        peak_bytes, now_bytes = self._sizes()
        size_bytes = peak_bytes - now_bytes
        if size_bytes:
            address = self._library.mmap(None, size_bytes, 0, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
            if address == ctypes.c_void_p(-1).value:
                raise OSError(ctypes.get_errno(), "no address space is left to measure with")
            self._filler = (address, size_bytes)

    def _sizes(self) -> tuple[int, int]:
        """(the most so far, now) in bytes."""
        text = os.pread(self._status, 4096, 0)
        return _field(text, b"VmPeak:"), _field(text, b"VmSize:")


def _field(text: bytes, name: bytes) -> int:
    """A size in /proc/self/status. Raises OSError where the kernel does not tell it."""
    _, found, rest = text.partition(name)
    if not found:
        raise OSError(f"/proc/self/status has no {name.decode()}")
    return int(rest.split(None, 1)[0]) << 10
