"""Energy used over a range of samples, and per 1,000 samples trained on. Pure functions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.telemetry_records import DeviceDetailRow


class EnergyUse(NamedTuple):
    """Energy used in the steps (`first_step`, `last_step`]."""

    joules: float
    duration_ns: int
    first_step: int
    last_step: int


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
    return EnergyUse(joules, last.t_ns - first.t_ns, first.step, last.step)


def joules_per_thousand(use: EnergyUse | None, samples: int | None) -> float | None:
    """Joules per 1,000 of the `samples` trained on in the steps of `use`.

    The ends of the range lie somewhere within a step, so the figure is off by up to a step's share of it.
    """
    if use is None or not samples:
        return None
    return 1_000 * use.joules / samples
