"""Energy used over a range of samples, and per 1,000 samples trained on. Pure functions."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from harness.records import DeviceSampleRow
from harness.telemetry_records import DeviceDetailRow


class EnergyMethod(StrEnum):
    """Where a figure of energy comes from."""

    COUNTER = "counter"
    """The device's own counter."""
    POWER = "power"
    """Power read about once a second, summed over time: an estimate."""


class EnergyUse(NamedTuple):
    """Energy used in the steps (`first_step`, `last_step`]."""

    joules: float
    duration_ns: int
    first_step: int
    last_step: int
    method: EnergyMethod


def counted(rows: Sequence[DeviceDetailRow]) -> EnergyUse | None:
    """By the device's counter, over rows in order; None without two values.

    The counter starts anew when the driver is loaded anew: what was used across that moment is left out.
    """
    known = [row for row in rows if row.energy_j is not None]
    if len(known) < 2:
        return None
    joules = sum(
        max(0.0, (later.energy_j or 0.0) - (earlier.energy_j or 0.0)) for earlier, later in pairwise(known)
    )
    first, last = known[0], known[-1]
    return EnergyUse(joules, last.t_ns - first.t_ns, first.step, last.step, EnergyMethod.COUNTER)


def estimated(rows: Sequence[DeviceSampleRow]) -> EnergyUse | None:
    """From power, by the trapezoidal rule over rows in order; None without two values."""
    known = [row for row in rows if row.power_w is not None]
    if len(known) < 2:
        return None
    joules = sum(
        ((earlier.power_w or 0.0) + (later.power_w or 0.0)) / 2 * (later.t_ns - earlier.t_ns) / 1e9
        for earlier, later in pairwise(known)
    )
    first, last = known[0], known[-1]
    return EnergyUse(joules, last.t_ns - first.t_ns, first.step, last.step, EnergyMethod.POWER)


def joules_per_thousand(use: EnergyUse | None, samples: int | None) -> float | None:
    """Joules per 1,000 of the `samples` trained on in the steps of `use`.

    The ends of the range lie somewhere within a step, so the figure is off by up to a step's share of it.
    """
    if use is None or not samples:
        return None
    return 1_000 * use.joules / samples
