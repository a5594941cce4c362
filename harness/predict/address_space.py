"""High-water mark of the temporary memory of a call, from the Linux kernel's record of address space.

`VmPeak` in /proc/self/status is the process's largest address space so far, to the page. An empty mapping
fills the gap between it and the current size, so that the next allocation raises it. With malloc configured
to map every block of 16 KiB and more separately, the figure is exact; nothing is sampled.
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
    """The address space of this process. The constructor configures malloc permanently, so the process should
    do nothing else. For one thread, while no other allocates."""

    def __init__(self, heap: Heap) -> None:
        """`heap` is this process's malloc. Raises OSError without /proc."""
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
        self._library.free.restype, self._library.free.argtypes = None, (ctypes.c_void_p,)
        self._filler: tuple[int, int] | None = None
        self._separate_blocks()

    @property
    def in_use_bytes(self) -> int:
        """Bytes allocated by malloc."""
        return in_use(self._heap.info())

    def measure(self, call: Callable[[], Result]) -> tuple[int, Result]:
        """Run `call`; return its high-water mark in bytes beyond the memory left at its return (which
        includes its result), and its result. Raises the errors of `call`."""
        self._fill_holes()
        self._fill_gap()
        result = call()
        peak_bytes, now_bytes = self._sizes()
        return peak_bytes - now_bytes, result

    def _separate_blocks(self) -> None:
        """Configure malloc to map large blocks separately and to return every free page."""
        for option, value in (
            (_M_MMAP_THRESHOLD, _LARGE_BYTES),
            (_M_TOP_PAD, 0),
            (_M_TRIM_THRESHOLD, 0),
            (_M_ARENA_MAX, 1),
        ):
            self._library.mallopt(ctypes.c_int(option), ctypes.c_int(value))
        self._heap.trim(0)

    def _fill_holes(self) -> None:
        """Allocate, for good, the free chunks of the heap that are large enough for a large block, so that
        none is reused: malloc maps a block only where no chunk fits. Calls leave new ones, as does what they
        import."""
        mapped = self._heap.info().hblks
        for _ in range(_MOST_HOLES):
            block = self._library.malloc(_LARGE_BYTES)
            if self._heap.info().hblks > mapped:
                self._library.free(block)
                break

    def _fill_gap(self) -> None:
        """Map, without using it, the difference between the largest and the current address space."""
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
        """Return (largest so far, current) in bytes."""
        text = os.pread(self._status, 4096, 0)
        return _field(text, b"VmPeak:"), _field(text, b"VmSize:")


def _field(text: bytes, name: bytes) -> int:
    """Return a size from /proc/self/status in bytes. Raises OSError if the field is missing."""
    _, match, rest = text.partition(name)
    if not match:
        raise OSError(f"/proc/self/status has no {name.decode()}")
    return int(rest.split(None, 1)[0]) << 10
