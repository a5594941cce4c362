"""Throttle reasons of a GPU in words, and the time spent throttled. Pure functions.

The reasons are those of NVML (nvml.h, "clocks event reasons"). Low clocks of an idle GPU, or clocks set by
the user, are not throttling.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.records.telemetry import DeviceDetailRow, ThrottleReason

# Throttle reasons, the most severe first; each text completes "the GPU is ...".
THROTTLE_TEXTS = {
    ThrottleReason.HW_THERMAL: "too hot (hardware thermal slowdown)",
    ThrottleReason.POWER_BRAKE: "slowed down by the power brake of its power supply",
    ThrottleReason.HW_SLOWDOWN: "in hardware slowdown",
    ThrottleReason.SW_THERMAL: "at its temperature limit",
    ThrottleReason.POWER_CAP: "at its power limit",
    ThrottleReason.SYNC_BOOST: "synchronized to the clocks of its group (sync boost)",
}
# Reasons with a cause to fix. A busy GPU is expected to run at its power limit.
SEVERE = (
    ThrottleReason.HW_THERMAL
    | ThrottleReason.POWER_BRAKE
    | ThrottleReason.HW_SLOWDOWN
    | ThrottleReason.SW_THERMAL
)

_COUNTERS = {
    "held_hw_thermal_ns": ThrottleReason.HW_THERMAL,
    "held_power_brake_ns": ThrottleReason.POWER_BRAKE,
    "held_thermal_ns": ThrottleReason.SW_THERMAL,
    "held_power_ns": ThrottleReason.POWER_CAP,
    "held_sync_boost_ns": ThrottleReason.SYNC_BOOST,
}


class ThrottleTime(NamedTuple):
    """One throttle reason: whether it is active, and for how long it was, in ns. None where not reported."""

    reason: ThrottleReason
    is_active: bool | None
    # Between the first and the last row.
    recent_ns: int | None
    # Since the driver was loaded.
    total_ns: int | None


def active_reasons(bits: int | None) -> list[ThrottleReason]:
    """The active throttle reasons in NVML's mask, the most severe first.

    NVML sets HW_SLOWDOWN together with the two reasons it covers; it is left out next to them.
    """
    reasons = [reason for reason in THROTTLE_TEXTS if (bits or 0) & reason]
    if {ThrottleReason.HW_THERMAL, ThrottleReason.POWER_BRAKE} & set(reasons):
        reasons = [reason for reason in reasons if reason is not ThrottleReason.HW_SLOWDOWN]
    return reasons


def throttle_clause(bits: int | None) -> str:
    """The active throttle reasons as one clause: "at its power limit"; empty without one."""
    return "; ".join(THROTTLE_TEXTS[reason] for reason in active_reasons(bits))


def throttle_times(bits: int | None, rows: Sequence[DeviceDetailRow]) -> list[ThrottleTime]:
    """Every reason that has a counter, the most severe first, from NVML's mask and `rows` in order."""
    times = []
    for name, reason in _COUNTERS.items():
        values: list[int] = [value for row in rows if (value := getattr(row, name)) is not None]
        recent_ns = None
        if len(values) > 1:
            recent_ns = sum(max(0, later - earlier) for earlier, later in pairwise(values))
        is_active = None if bits is None else bool(bits & reason)
        times.append(ThrottleTime(reason, is_active, recent_ns, values[-1] if values else None))
    return times
