"""A reserve of this process's memory, for the report on an out-of-memory error under a limit of the process.

A memory cap is lifted for the report; a limit that the shell or the script has set is not. The reserve is an
untouched private mapping, which counts towards such a limit without taking any of the machine's memory.
"""

import mmap
import threading
from contextlib import suppress

# Enough for every report of 30 runs under `ulimit -d`, of which a third lacked the variables without it.
RESERVE_BYTES = 8 << 20
# A run that has less left than this many times the reserve keeps all of it.
_LEAST_RATIO = 16


class Reserve:
    """The reserve, held from `hold` to `release`. Both may be called from any thread."""

    def __init__(self) -> None:
        self._mapping: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._is_released = False

    @property
    def held_bytes(self) -> int:
        """Size of the reserve; 0 while it is not held."""
        return 0 if self._mapping is None else RESERVE_BYTES

    @property
    def is_released(self) -> bool:
        """True from the release of a held reserve to `renew`."""
        return self._is_released

    def hold(self, left_bytes: int) -> None:
        """Take the reserve where `left_bytes`, those under the limit, are many times as much. Does nothing
        where it is held already, and from `release` to `renew`."""
        if left_bytes < _LEAST_RATIO * RESERVE_BYTES:
            return
        with self._lock:
            if self._is_released or self._mapping is not None:
                return
            # Another thread may take what is left.
            with suppress(OSError, MemoryError):
                self._mapping = mmap.mmap(-1, RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self) -> None:
        """Release the reserve for a report."""
        with self._lock:
            mapping, self._mapping = self._mapping, None
            if mapping is not None:
                self._is_released = True
                mapping.close()

    def renew(self) -> None:
        """Let `hold` take the reserve again."""
        self._is_released = False
