"""Validation of a memory cap, with one message for every device, and the share of a GPU that a cap limits."""

import math
from typing import Any

from harness import words
from harness.errors import SettingError

_SETTING = "memory_cap_gib"
# A cap on the CPU must leave this beyond the bytes in use when it is set; free bytes of the heap count too.
CPU_HEADROOM_BYTES = 128 << 20


def validate_cap(
    cap_bytes: int,
    reserved_bytes: int,
    smallest_bytes: int,
    headroom_for: str = "the allocator's next segment",
) -> None:
    """Raise SettingError when `cap_bytes` is below `smallest_bytes`, the smallest cap that is accepted while
    the run has reserved `reserved_bytes`. `headroom_for` completes "a cap must leave … for"."""
    if cap_bytes < smallest_bytes:
        # On the CPU a slightly smaller cap is accepted too, but the next allocation may fail under it.
        working_bytes = max(smallest_bytes, reserved_bytes)
        headroom = words.size(working_bytes - reserved_bytes)
        rest = (
            f" a cap must leave {headroom} beyond that for {headroom_for},"
            if smallest_bytes > reserved_bytes
            else ""
        )
        raise SettingError(
            _SETTING,
            f"{_SETTING} cannot be {cap_bytes / 2**30:.4g}: the run already uses {_gib(reserved_bytes)} GiB,"
            f"{rest} and the smallest cap that works now is {_gib(working_bytes)}.",
        )


class ProcessFraction:
    """The share of a GPU's memory that the process may reserve, for a cap that comes and goes.

    The process may have a limit of its own, by `set_per_process_memory_fraction` or PYTORCH_ALLOC_CONF: a cap
    does not raise it, and lifting the cap restores it. With a torch that cannot read the share it is taken
    for the whole GPU.
    """

    def __init__(self, library: Any, device_index: int) -> None:
        """`library` is torch.cuda, torch.xpu or a fake."""
        self._library = library
        self._device_index = device_index
        # The process's own share, and what was read after a cap was applied over it; None without a cap.
        self._own = 1.0
        self._applied: float | None = None

    def read(self) -> float | None:
        """Return the share in effect, from 0 to 1; None where torch cannot read it."""
        read = getattr(self._library, "get_per_process_memory_fraction", None)
        # Without a limit the backend cudaMallocAsync divides the largest integer by the total.
        return None if read is None else min(1.0, float(read(self._device_index)))

    def cap(self, fraction: float) -> None:
        """Apply a cap, unless the process's own limit is lower."""
        self._own = self._read_own()
        self._library.set_per_process_memory_fraction(min(self._own, fraction), self._device_index)
        # Rounded to bytes, the share that is read differs from the one that was set.
        applied = self.read()
        self._applied = fraction if applied is None else applied

    def lift(self) -> None:
        """Restore the process's own limit, if a cap was applied. A limit set since then stays."""
        if self._applied is not None:
            own, self._applied = self._read_own(), None
            self._library.set_per_process_memory_fraction(own, self._device_index)

    def _read_own(self) -> float:
        fraction = self.read()
        if self._applied is not None and fraction in (None, self._applied):
            return self._own
        return 1.0 if fraction is None else fraction


def _gib(size_bytes: int) -> str:
    """Round up, so that the number is accepted as input."""
    return f"{math.ceil(size_bytes / 2**30 * 1000) / 1000:.3f}"
