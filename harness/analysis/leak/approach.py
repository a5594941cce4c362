"""The approach of a run to its limit on the CPU where steps need more and more memory.

Neither the slope of a leak nor that of the process between two steps shows when memory runs out there: larger
tensors leave larger holes, so the memory left falls ever faster, and lowest within the steps. It is
extrapolated by itself, with the change of its rate.
"""

from math import sqrt

from harness.analysis.leak.growth import BLOCKS, SURE_Z
from harness.analysis.leak.history import History, coarse
from harness.analysis.leak.trend import trend


class Approach:
    """Follows the memory left under a cap or a limit of the process, by its minima."""

    def __init__(self) -> None:
        self._history = History()

    def restart(self) -> None:
        """Discard all readings."""
        self._history = History()

    def add(self, step: int, left_bytes: int) -> None:
        """Add what is left; steps that are not newer are ignored."""
        if not self._history.samples or step > self._history.last_step:
            self._history.add(step, left_bytes)

    def steps_left(self, left_bytes: int) -> int | None:
        """Return the steps until the `left_bytes` of the newest readings are used up; None if they do not
        fall for certain."""
        blocks = self._history.blocks()
        if len(blocks.values) < BLOCKS:
            return None
        steps, values = coarse(blocks, BLOCKS)
        whole = trend(steps, values)
        if whole.z >= -SURE_Z:
            return None
        half = BLOCKS // 2
        older, newer = trend(steps[:half], values[:half]), trend(steps[half:], values[half:])
        rate, change = -whole.slope, 0.0
        if newer.high < older.low:  # It falls faster now.
            middles = float(steps[half:].mean() - steps[:half].mean())
            change = (older.slope - newer.slope) / middles
            rate = -newer.slope + change * (self._history.last_step - float(steps[half:].mean()))
        if rate <= 0:
            return None
        # The positive root of left = rate · t + change · t² / 2.
        return max(0, int(2 * left_bytes / (rate + sqrt(rate * rate + 2 * change * max(left_bytes, 0)))))
