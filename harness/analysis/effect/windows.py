"""Windows of step times: equally long on both sides of a change, and all such pairs in the run's history."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from harness.step_time import StepTime

# A window is the longest of these that both sides have; so a result stands while the next length fills.
LENGTHS_S = (10.0, 20.0, 40.0)
# So much of a length has to be settled steps: profiled, unobserved and transition steps are missing.
SETTLED_SHARE = 0.9
# Where steps are long, a window has this many, and twice and four times as many.
MIN_STEPS = 32


class StepWindow(NamedTuple):
    """Settled steps under the same settings, in order. Each stands for `stride` steps of the run."""

    steps: Sequence[StepTime]
    stride: int

    @property
    def seconds(self) -> float:
        """The sum of the step times."""
        return self.stride * sum(step.step_ns for step in self.steps) / 1e9

    def last(self, seconds: float, count: int) -> "StepWindow":
        """The shortest end that has `seconds` and `count` steps; all where there is no more."""
        return self._replace(steps=self.steps[-_needed(self, reversed(self.steps), seconds, count) :])

    def first(self, seconds: float, count: int) -> "StepWindow":
        """The shortest beginning that has `seconds` and `count` steps; all where there is no more."""
        return self._replace(steps=self.steps[: _needed(self, self.steps, seconds, count)])

    def halves(self) -> tuple["StepWindow", "StepWindow"]:
        """Two windows of the same time."""
        first, second = self.blocks(2)
        return self._replace(steps=first), self._replace(steps=second)

    def blocks(self, number: int) -> list[Sequence[StepTime]]:
        """So many consecutive blocks of the same time, as near as whole steps allow; some may be empty."""
        share_ns = sum(step.step_ns for step in self.steps) / number
        blocks: list[Sequence[StepTime]] = []
        begin, passed_ns = 0, 0.0
        for at, step in enumerate(self.steps):
            while passed_ns + step.step_ns / 2 > share_ns * (len(blocks) + 1) and len(blocks) < number - 1:
                blocks.append(self.steps[begin:at])
                begin = at
            passed_ns += step.step_ns
        blocks.append(self.steps[begin:])
        return blocks + [self.steps[:0]] * (number - len(blocks))


Pair = tuple[StepWindow, StepWindow]
"""Windows next to each other."""


def stretches(steps: Sequence[StepTime], stride: int) -> dict[int, StepWindow]:
    """The settled steps of each version of the settings."""
    return {
        version: StepWindow([step for step in group if not step.flags], stride)
        for version, group in groupby(steps, key=lambda step: step.settings_version)
    }


def reached(seconds: float) -> int:
    """How many of `LENGTHS_S` fit into so many seconds on the run's clock."""
    return sum(seconds >= length for length in LENGTHS_S)


def longest_pair(before: StepWindow, after: StepWindow) -> Pair | None:
    """The windows of the greatest of `LENGTHS_S` that both sides have; None where even the shortest is more
    than one of them has."""
    has_s = min(before.seconds, after.seconds)
    has_steps = min(len(before.steps), len(after.steps))
    for times, length_s in reversed(list(enumerate(LENGTHS_S))):
        count = MIN_STEPS << times
        if has_s >= SETTLED_SHARE * length_s and has_steps >= count:
            seconds = min(has_s, length_s)
            pair = before.last(seconds, count), after.first(seconds, count)
            seconds = min(has_s, max(window.seconds for window in pair))
            return before.last(seconds, count), after.first(seconds, count)
    return None


def neighbours(history: Sequence[StepWindow], seconds: float) -> Iterator[Pair]:
    """Neighbouring windows without a change in between: of `seconds` each, or of half that and more in a
    stretch that is too short for two."""
    for stretch in history:
        total_s = stretch.seconds
        number = max(2, int(total_s / seconds))
        if total_s / number < seconds / 2 or len(stretch.steps) < number * MIN_STEPS // 2:
            continue
        parts = [stretch._replace(steps=steps) for steps in stretch.blocks(number)]
        yield from pairwise(parts)


def _needed(
    window: StepWindow, steps: Sequence[StepTime] | Iterator[StepTime], seconds: float, count: int
) -> int:
    """How many of `steps`, taken in this order, make up `seconds` and `count`."""
    needed_ns, number = seconds * 1e9 / window.stride, 0
    for step in steps:
        if needed_ns <= 0 and number >= count:
            break
        needed_ns -= step.step_ns
        number += 1
    return number
