"""Energy over a range of samples, and per 1,000 trained samples. Pure functions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.records.telemetry import DeviceDetailRow


class EnergyUse(NamedTuple):
    """Energy used in the steps (`first_step`, `last_step`]."""

    joules: float
    duration_ns: int
    first_step: int
    last_step: int


def energy_use(rows: Sequence[DeviceDetailRow]) -> EnergyUse | None:
    """Energy by the device's counter, over rows in order; None with fewer than two values.

    The counter restarts when the driver is reloaded; the energy across a restart is not counted.
    """
    rows = [row for row in rows if row.energy_j is not None]
    if len(rows) < 2:
        return None
    joules = sum(
        max(0.0, (later.energy_j or 0.0) - (earlier.energy_j or 0.0)) for earlier, later in pairwise(rows)
    )
    first, last = rows[0], rows[-1]
    return EnergyUse(joules, last.t_ns - first.t_ns, first.step, last.step)


def joules_per_thousand(use: EnergyUse | None, samples: int | None) -> float | None:
    """Joules per 1,000 of the `samples` trained in the steps of `use`.

    The range begins and ends within a step, so the error is up to one step's share of the range.
    """
    if use is None or not samples:
        return None
    return 1_000 * use.joules / samples
