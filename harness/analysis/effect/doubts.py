"""Reasons not to trust a measured effect, from the conditions under which its blocks ran."""

from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.records.telemetry import ThrottleReason

# Clocks of both arms that differ by this share can explain a difference that counts.
_CLOCK_SHARE = 0.02
# Cores that other processes use, on average, from which they delay a training on the CPU.
_CORES = 0.5

_THROTTLED = (
    ThrottleReason.POWER_CAP
    | ThrottleReason.HW_SLOWDOWN
    | ThrottleReason.SW_THERMAL
    | ThrottleReason.HW_THERMAL
    | ThrottleReason.POWER_BRAKE
)


class ArmConditions(NamedTuple):
    """The device while one arm ran. None: not measured."""

    sm_clock_mhz: float | None
    # All NVML throttle reasons that were active at times, as a mask.
    throttle_reasons: int


class Conditions(NamedTuple):
    """The conditions of both arms, and of all blocks together."""

    a: ArmConditions
    b: ArmConditions
    retries: int
    recorded_steps: int
    missing_steps: int
    # Names of other processes on the device.
    other_processes: Sequence[str]
    # Cores used by other processes on average, for a training on the CPU. None: not measured.
    other_cores: float | None


def doubts(conditions: Conditions) -> list[str]:
    """Return the reasons as sentences; empty without any."""
    a, b = conditions.a, conditions.b
    reasons = []
    if a.sm_clock_mhz and b.sm_clock_mhz and abs(b.sm_clock_mhz / a.sm_clock_mhz - 1) > _CLOCK_SHARE:
        reasons.append(
            f"The device's clocks differ: {a.sm_clock_mhz:,.0f} MHz in arm A, {b.sm_clock_mhz:,.0f} MHz in "
            "arm B."
        )
    if (a.throttle_reasons ^ b.throttle_reasons) & int(_THROTTLED):
        arm = "B" if b.throttle_reasons & int(_THROTTLED) else "A"
        reasons.append(f"The device was throttled in arm {arm} only.")
    if conditions.retries:
        reasons.append(
            f"{words.plural(conditions.retries, 'allocation')} succeeded only after the cache was emptied."
        )
    if conditions.recorded_steps:
        count = words.plural(conditions.recorded_steps, "step")
        reasons.append(f"{count} ran under a profiler or a snapshot.")
    if conditions.missing_steps:
        reasons.append(f"{words.plural(conditions.missing_steps, 'row')} are missing in the log.")
    if conditions.other_processes:
        names = ", ".join(sorted(set(conditions.other_processes))[:3])
        reasons.append(f"Another process used the device: {names}.")
    if conditions.other_cores is not None and conditions.other_cores >= _CORES:
        reasons.append(f"Other processes used {conditions.other_cores:.1f} of the machine's cores.")
    return reasons
