"""When a memory cap is too small to be set: one sentence for every device."""

import math

from harness.errors import SettingError

_SETTING = "memory_cap_gib"


def require_room(cap_bytes: int, held_bytes: int, smallest_bytes: int) -> None:
    """Raise SettingError when `cap_bytes` is below `smallest_bytes`, the smallest cap that would work while
    the run holds `held_bytes`."""
    if cap_bytes < smallest_bytes:
        raise SettingError(
            _SETTING,
            f"{_SETTING} cannot be {cap_bytes / 2**30:.4g}: the run already holds {_gib(held_bytes)} GiB, "
            f"and the smallest cap that works now is {_gib(smallest_bytes)}.",
        )


def _gib(size_bytes: int) -> str:
    """Rounded up, so that the number, typed in, is accepted."""
    return f"{math.ceil(size_bytes / 2**30 * 1000) / 1000:.3f}"
