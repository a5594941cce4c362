"""Windows of step times: of equal length on both sides of a change, and all such pairs in the history."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.records.step_time import StepTime

# A window has the longest of these lengths that both sides reach; the result stays until the next is reached.
LENGTHS_S = (10.0, 20.0, 40.0)
# Minimum share of steady-state steps in a length: profiled, unobserved and transition steps are excluded.
STEADY_SHARE = 0.9
# Minimum number of steps in the shortest window; the longer ones have two and four times as many.
MIN_STEPS = 32


class SteadyStep(NamedTuple):
    """A steady-state step, and the time since the previous row: of `step_count` steps, including this one."""

    step: int
    step_ns: int
    samples: int
    peak_allocated_bytes: int | None
    step_count: int
    passed_ns: int


class StepWindow(NamedTuple):
    """Steady-state steps under the same settings, in order."""

    steps: Sequence[SteadyStep]

    @property
    def seconds(self) -> float:
        """The elapsed time."""
        return sum(step.passed_ns for step in self.steps) / 1e9

    @property
    def step_count(self) -> int:
        """The number of steps the run took in that time."""
        return sum(step.step_count for step in self.steps)

    def last(self, seconds: float, count: int) -> "StepWindow":
        """Return the shortest end with `seconds` and `count` steps; all steps if there are fewer."""
        return StepWindow(self.steps[-_needed(reversed(self.steps), seconds, count) :])

    def first(self, seconds: float, count: int) -> "StepWindow":
        """Return the shortest beginning with `seconds` and `count` steps; all steps if there are fewer."""
        return StepWindow(self.steps[: _needed(self.steps, seconds, count)])

    @property
    def has_samples(self) -> bool:
        """Return whether the number of samples of every step is known."""
        return all(step.samples for step in self.steps)

    def usual(self) -> "StepWindow":
        """Return the steps with the most frequent number of samples, thus without the smaller batches at the
        ends of epochs, which take less time; all steps if fewer than half have the same number."""
        counts = Counter(step.samples for step in self.steps)
        if len(counts) < 2:
            return self
        ((samples, count),) = counts.most_common(1)
        if 2 * count < len(self.steps):
            return self
        return StepWindow([step for step in self.steps if step.samples == samples])

    def halves(self) -> tuple["StepWindow", "StepWindow"]:
        """Split into two windows of equal time."""
        first, second = self.blocks(2)
        return StepWindow(first), StepWindow(second)

    def blocks(self, number: int) -> list[Sequence[SteadyStep]]:
        """Split into `number` blocks of equal time, as nearly as whole steps allow; some may be empty."""
        share_ns = sum(step.passed_ns for step in self.steps) / number
        blocks: list[Sequence[SteadyStep]] = []
        begin, passed_ns = 0, 0.0
        for at, step in enumerate(self.steps):
            while passed_ns + step.passed_ns / 2 > share_ns * (len(blocks) + 1) and len(blocks) < number - 1:
                blocks.append(self.steps[begin:at])
                begin = at
            passed_ns += step.passed_ns
        blocks.append(self.steps[begin:])
        return blocks + [self.steps[:0]] * (number - len(blocks))


# Two consecutive windows.
Pair = tuple[StepWindow, StepWindow]

# For each stretch of a run, consecutive windows under the same settings.
Chains = Sequence[Sequence[StepWindow]]


def stretches(steps: Sequence[StepTime]) -> dict[int, StepWindow]:
    """Return the steady-state steps by version of the settings. A pause is part of the flagged step after it.
    Rows without a time, which no run writes, are excluded."""
    by_version: dict[int, list[SteadyStep]] = {}
    earlier: StepTime | None = None
    for row in steps:
        steady_steps = by_version.setdefault(row.settings_version, [])
        if not row.flags and row.step_ns > 0:
            count = 1 if earlier is None else row.step - earlier.step
            passed_ns = row.step_ns if earlier is None else max(1, row.t_ns - earlier.t_ns)
            peak_bytes = row.peak_allocated_bytes
            steady_steps.append(SteadyStep(row.step, row.step_ns, row.samples, peak_bytes, count, passed_ns))
        earlier = row
    return {version: StepWindow(steady_steps) for version, steady_steps in by_version.items()}


def count_lengths(seconds: float) -> int:
    """Return the number of `LENGTHS_S` that fit into `seconds` on the run's clock."""
    return sum(seconds >= length for length in LENGTHS_S)


def longest_pair(before: StepWindow, after: StepWindow) -> Pair | None:
    """Return the windows of the longest of `LENGTHS_S` that both sides reach; None if either side is shorter
    than the shortest."""
    common_s = min(before.seconds, after.seconds)
    common_steps = min(len(before.steps), len(after.steps))
    for times, length_s in reversed(list(enumerate(LENGTHS_S))):
        count = MIN_STEPS << times
        if common_s >= STEADY_SHARE * length_s and common_steps >= count:
            seconds = min(common_s, length_s)
            pair = before.last(seconds, count), after.first(seconds, count)
            seconds = min(common_s, max(window.seconds for window in pair))
            return before.last(seconds, count), after.first(seconds, count)
    return None


def chains(steady: Iterable[StepWindow], seconds: float) -> list[list[StepWindow]]:
    """Split each stretch into consecutive windows without a change in between, of `seconds` each, or of at
    least half that in a stretch too short for two. A shorter stretch has none."""
    window_chains = []
    for stretch in steady:
        total_s = stretch.seconds
        number = max(2, int(total_s / seconds))
        if total_s / number >= seconds / 2 and len(stretch.steps) >= number * MIN_STEPS // 2:
            window_chains.append([StepWindow(steps) for steps in stretch.blocks(number)])
    return window_chains


def _needed(steps: Iterable[SteadyStep], seconds: float, count: int) -> int:
    """Return the number of `steps`, in this order, that make up `seconds` and `count`."""
    needed_ns, number = seconds * 1e9, 0
    for step in steps:
        if needed_ns <= 0 and number >= count:
            break
        needed_ns -= step.passed_ns
        number += 1
    return number
