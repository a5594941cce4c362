"""The bounded history of a series: the lowest value of each of some hundred stretches of steps."""

from typing import NamedTuple

import numpy as np

from harness.analysis.leak.trend import Floats

MOST_BLOCKS = 192
"""Blocks kept before two and two are joined: at least 96 remain, so that the last eighth of the history
still has a dozen."""


class Minima(NamedTuple):
    """The lowest values of consecutive stretches of a history, and the steps at which they were reached."""

    steps: Floats
    values: Floats


class History:
    """Takes samples in the order of their steps and keeps block minima, each of as many samples as the
    others. Memory and time are the same however long the run is."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._size = 1
        self._filled = 0
        self.samples = 0
        self.first_step = 0
        self.last_step = 0

    def add(self, step: int, value: float) -> None:
        """Take the sample of a step; `step` is greater than the one before."""
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
        """Make each two blocks one."""
        pairs = range(0, MOST_BLOCKS, 2)
        lower = [i if self._values[i] < self._values[i + 1] else i + 1 for i in pairs]
        self._steps = [self._steps[i] for i in lower]
        self._values = [self._values[i] for i in lower]
        self._size *= 2

    def blocks(self) -> Minima:
        """The whole blocks, finely cut. The one being filled is left out: it has seen too little to know its
        minimum."""
        whole = len(self._values) - (self._filled > 0)
        return Minima(np.array(self._steps[:whole], dtype=float), np.array(self._values[:whole]))


def coarse(blocks: Minima, count: int) -> Minima:
    """The newest blocks joined to `count` larger ones of equal size; the oldest that remain are left out."""
    size = len(blocks.values) // count
    newest = blocks.values[len(blocks.values) - size * count :].reshape(count, size)
    steps = blocks.steps[len(blocks.steps) - size * count :].reshape(count, size)
    at = (size - 1) - newest[:, ::-1].argmin(axis=1)
    rows = np.arange(count)
    return Minima(steps[rows, at], newest[rows, at])
