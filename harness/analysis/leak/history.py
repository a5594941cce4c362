"""Bounded history of a series: the minimum of each of some hundred blocks of steps."""

from typing import NamedTuple

import numpy as np

from harness.analysis.leak.trend import Floats

# Maximum number of blocks, after which pairs are merged: at least 96 remain, so that the last eighth of the
# history has a dozen.
MOST_BLOCKS = 192


class Minima(NamedTuple):
    """Minima of consecutive blocks of a history, and the steps at which they were reached."""

    steps: Floats
    values: Floats


class History:
    """Reduces samples, added in the order of their steps, to the minima of equally sized blocks. Memory use
    is bounded, and time per sample is constant."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._size = 1
        self._filled = 0
        self.samples = 0
        self.first_step = 0
        self.last_step = 0

    def add(self, step: int, value: float) -> None:
        """Add the sample of a step; `step` is greater than the previous one."""
        if not self.samples:
            self.first_step = step
        self.samples += 1
        self.last_step = step
        if self._filled == 0:
            if len(self._values) == MOST_BLOCKS:
                self._join()
            self._steps.append(step)
            self._values.append(value)
        elif value <= self._values[-1]:
            self._steps[-1], self._values[-1] = step, value
        self._filled = (self._filled + 1) % self._size

    def _join(self) -> None:
        """Merge pairs of blocks."""
        pairs = range(0, MOST_BLOCKS, 2)
        lower = [i if self._values[i] < self._values[i + 1] else i + 1 for i in pairs]
        self._steps = [self._steps[i] for i in lower]
        self._values = [self._values[i] for i in lower]
        self._size *= 2

    def blocks(self) -> Minima:
        """Return the complete blocks. The one being filled is excluded: its minimum is not final."""
        whole = len(self._values) - (self._filled > 0)
        return Minima(np.array(self._steps[:whole], dtype=float), np.array(self._values[:whole]))


def coarse(blocks: Minima, count: int) -> Minima:
    """Merge the newest blocks into `count` larger ones of equal size; the oldest remainder is excluded."""
    size = len(blocks.values) // count
    newest = blocks.values[len(blocks.values) - size * count :].reshape(count, size)
    steps = blocks.steps[len(blocks.steps) - size * count :].reshape(count, size)
    at = (size - 1) - newest[:, ::-1].argmin(axis=1)
    rows = np.arange(count)
    return Minima(steps[rows, at], newest[rows, at])
