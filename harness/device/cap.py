"""Validation of a memory cap, with one message for every device."""

import math

from harness.errors import SettingError

_SETTING = "memory_cap_gib"
# A cap on the CPU must leave this beyond the bytes in use when it is set; free bytes of the heap count too.
CPU_HEADROOM_BYTES = 128 << 20


def validate_cap(cap_bytes: int, reserved_bytes: int, smallest_bytes: int) -> None:
    """Raise SettingError when `cap_bytes` is below `smallest_bytes`, the smallest cap that works while the
    run has reserved `reserved_bytes`."""
    if cap_bytes < smallest_bytes:
        raise SettingError(
            _SETTING,
            f"{_SETTING} cannot be {cap_bytes / 2**30:.4g}: the run already uses {_gib(reserved_bytes)} GiB, "
            f"and the smallest cap that works now is {_gib(smallest_bytes)}.",
        )


def _gib(size_bytes: int) -> str:
    """Round up, so that the number is accepted as input."""
    return f"{math.ceil(size_bytes / 2**30 * 1000) / 1000:.3f}"
