"""Why a GPU's clocks are held back, in words, and for how long. Pure functions.

Which reasons there are and what they mean is NVML's (nvml.h, "clocks event reasons"). That clocks are low
because the GPU idles, or because somebody set them, is not throttling.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.telemetry_records import DeviceDetailRow, ThrottleReason

# Each reason that holds clocks back, the most severe first.
WORDS = {
    ThrottleReason.HW_THERMAL: "too hot, so that the hardware halves its clocks",
    ThrottleReason.POWER_BRAKE: "warned by the power supply, so that the hardware halves its clocks",
    ThrottleReason.HW_SLOWDOWN: "slowed down by its hardware",
    ThrottleReason.SW_THERMAL: "close to its temperature limit",
    ThrottleReason.POWER_CAP: "at its power limit",
    ThrottleReason.SYNC_BOOST: "held to the clocks of its group",
}
# Reasons with a cause to be looked for. A power limit is where a busy GPU is expected to run.
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


class Held(NamedTuple):
    """One reason: whether it holds now, and for how long it did, in ns. None where it is not told."""

    reason: ThrottleReason
    is_active: bool | None
    recent_ns: int | None
    """Between the first and the last row looked at."""
    total_ns: int | None
    """Since the driver was loaded."""


def active(bits: int | None) -> list[ThrottleReason]:
    """The reasons for held clocks in NVML's mask, the most severe first.

    HW_SLOWDOWN is set beside the two reasons it stands for; it is left out where one of them says more.
    """
    found = [reason for reason in WORDS if (bits or 0) & reason]
    if {ThrottleReason.HW_THERMAL, ThrottleReason.POWER_BRAKE} & set(found):
        found = [reason for reason in found if reason is not ThrottleReason.HW_SLOWDOWN]
    return found


def in_words(bits: int | None) -> str:
    """The reasons for held clocks as one clause, empty when there is none: "at its power limit"."""
    return "; ".join(WORDS[reason] for reason in active(bits))


def held(bits: int | None, rows: Sequence[DeviceDetailRow]) -> list[Held]:
    """Every reason that has a counter, the most severe first: from the mask, and over `rows`, in order."""
    found = []
    for name, reason in _COUNTERS.items():
        known: list[int] = [value for row in rows if (value := getattr(row, name)) is not None]
        recent = None
        if len(known) > 1:
            recent = sum(max(0, later - earlier) for earlier, later in pairwise(known))
        is_active = None if bits is None else bool(bits & reason)
        found.append(Held(reason, is_active, recent, known[-1] if known else None))
    return found
