"""Steps as they would be at one speed of the machine, by the reference work beside them."""

from collections.abc import Sequence
from statistics import median

from harness.records.step_time import StepTime


def at_equal_speed(steps: Sequence[tuple[StepTime, int]]) -> list[StepTime]:
    """Return the steps with their times scaled to the median speed: each by the duration in ns of the
    reference work that ran right after it."""
    usable = [(step, took_ns) for step, took_ns in steps if took_ns > 0]
    if not usable:
        return []
    usual_ns = median(took_ns for _, took_ns in usable)
    return [step._replace(step_ns=round(step.step_ns * usual_ns / took_ns)) for step, took_ns in usable]
