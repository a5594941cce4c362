"""Windows of step times: equally long on both sides of a change, and all such pairs in the run's history."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.records.step_time import StepTime

# A window is the longest of these that both sides have; so a result stands while the next length fills.
LENGTHS_S = (10.0, 20.0, 40.0)
# So much of a length has to be settled steps: profiled, unobserved and transition steps are missing.
SETTLED_SHARE = 0.9
# Where steps are long, a window has this many, and twice and four times as many.
MIN_STEPS = 32


class Passage(NamedTuple):
    """A settled step, and the time since the row before it: that of `step_count` steps, this one included."""

    step: int
    step_ns: int
    samples: int
    peak_allocated_bytes: int | None
    step_count: int
    passed_ns: int


class StepWindow(NamedTuple):
    """Settled steps under the same settings, in order."""

    steps: Sequence[Passage]

    @property
    def seconds(self) -> float:
        """The time that passed."""
        return sum(step.passed_ns for step in self.steps) / 1e9

    @property
    def step_count(self) -> int:
        """How many steps the run took in that time."""
        return sum(step.step_count for step in self.steps)

    def last(self, seconds: float, count: int) -> "StepWindow":
        """The shortest end that has `seconds` and `count` steps; all where there is no more."""
        return StepWindow(self.steps[-_needed(reversed(self.steps), seconds, count) :])

    def first(self, seconds: float, count: int) -> "StepWindow":
        """The shortest beginning that has `seconds` and `count` steps; all where there is no more."""
        return StepWindow(self.steps[: _needed(self.steps, seconds, count)])

    def halves(self) -> tuple["StepWindow", "StepWindow"]:
        """Two windows of the same time."""
        first, second = self.blocks(2)
        return StepWindow(first), StepWindow(second)

    def blocks(self, number: int) -> list[Sequence[Passage]]:
        """So many consecutive blocks of the same time, as near as whole steps allow; some may be empty."""
        share_ns = sum(step.passed_ns for step in self.steps) / number
        blocks: list[Sequence[Passage]] = []
        begin, passed_ns = 0, 0.0
        for at, step in enumerate(self.steps):
            while passed_ns + step.passed_ns / 2 > share_ns * (len(blocks) + 1) and len(blocks) < number - 1:
                blocks.append(self.steps[begin:at])
                begin = at
            passed_ns += step.passed_ns
        blocks.append(self.steps[begin:])
        return blocks + [self.steps[:0]] * (number - len(blocks))


Pair = tuple[StepWindow, StepWindow]
"""Windows next to each other."""

Chains = Sequence[Sequence[StepWindow]]
"""Windows one after the other under the same settings, for each stretch of a run."""


def stretches(steps: Sequence[StepTime]) -> dict[int, StepWindow]:
    """The settled steps of each version of the settings. A pause is part of the flagged step after it. Rows
    without a time or samples, which no run writes, are left out."""
    found: dict[int, list[Passage]] = {}
    earlier: StepTime | None = None
    for row in steps:
        passages = found.setdefault(row.settings_version, [])
        if not row.flags and row.step_ns > 0 and row.samples > 0:
            count = 1 if earlier is None else row.step - earlier.step
            passed_ns = row.step_ns if earlier is None else max(1, row.t_ns - earlier.t_ns)
            peak_bytes = row.peak_allocated_bytes
            passages.append(Passage(row.step, row.step_ns, row.samples, peak_bytes, count, passed_ns))
        earlier = row
    return {version: StepWindow(passages) for version, passages in found.items()}


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


def chains(settled: Iterable[StepWindow], seconds: float) -> list[list[StepWindow]]:
    """Of each stretch, windows one after the other, without a change in between: of `seconds` each, or of
    half that and more in a stretch that is too short for two. A shorter stretch has none."""
    found = []
    for stretch in settled:
        total_s = stretch.seconds
        number = max(2, int(total_s / seconds))
        if total_s / number >= seconds / 2 and len(stretch.steps) >= number * MIN_STEPS // 2:
            found.append([StepWindow(steps) for steps in stretch.blocks(number)])
    return found


def _needed(steps: Iterable[Passage], seconds: float, count: int) -> int:
    """How many of `steps`, taken in this order, make up `seconds` and `count`."""
    needed_ns, number = seconds * 1e9, 0
    for step in steps:
        if needed_ns <= 0 and number >= count:
            break
        needed_ns -= step.passed_ns
        number += 1
    return number
