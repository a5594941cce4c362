"""When a memory cap is too small to be set: one rule and one sentence for every device."""

import math

from harness.errors import SettingError

_SETTING = "memory_cap_gib"


def require_room(cap_bytes: int, held_bytes: int, headroom_bytes: int) -> None:
    """Raise SettingError, naming the smallest cap that works, when `cap_bytes` leaves less than
    `headroom_bytes` above what the run holds already."""
    smallest_bytes = held_bytes + headroom_bytes
    if cap_bytes < smallest_bytes:
        raise SettingError(
            _SETTING,
            f"{_SETTING} cannot be {cap_bytes / 2**30:.4g}: the run already holds {_gib(held_bytes)} GiB and "
            f"needs {headroom_bytes >> 20} MiB of room; the smallest cap that works now is "
            f"{_gib(smallest_bytes)}.",
        )


def _gib(size_bytes: int) -> str:
    """Rounded up, so that the number, typed in, is accepted."""
    return f"{math.ceil(size_bytes / 2**30 * 1000) / 1000:.3f}"
