"""Step times around changes of settings, with known truth, for tests of what is observed."""

import math
import random
from collections.abc import Sequence
from itertools import accumulate

from harness.records.run import StepRow
from harness.records.step_time import StepTime

MS = 1_000_000


def some_times(
    *durations_ns: Sequence[float],
    samples: Sequence[int] = (32,),
    peaks: Sequence[int | None] = (15 << 20,),
    stride: int = 1,
) -> list[StepTime]:
    """Settled steps of as many versions of the settings as there are sequences of durations; the samples and
    peaks of a version are the last given where there are fewer. Each stands for `stride` steps like it."""
    times: list[StepTime] = []
    for number, durations in enumerate(durations_ns):
        count = samples[min(number, len(samples) - 1)]
        peak = peaks[min(number, len(peaks) - 1)]
        t_ns = times[-1].t_ns if times else 0
        ends_ns = accumulate((stride * round(duration) for duration in durations), initial=t_ns)
        next(ends_ns)
        times += [
            StepTime(stride * (len(times) + 1 + at), end_ns, round(duration), count, peak, number + 1, 0)
            for at, (duration, end_ns) in enumerate(zip(durations, ends_ns, strict=True))
        ]
    return times


def noise(
    rng: random.Random,
    steps: int,
    level_ns: float = 40 * MS,
    spread: float = 0.03,
    memory: float = 0.0,
    drift: float = 0.0,
) -> list[float]:
    """Log-normal step times: AR(1) with coefficient `memory`, and a drift of `drift` over the series; now and
    then a step that takes three times as long."""
    state, durations = 0.0, []
    for number in range(steps):
        state = memory * state + rng.gauss(0, spread) * math.sqrt(1 - memory**2)
        outlier = 3 if rng.random() < 0.01 else 1
        durations.append(level_ns * outlier * math.exp(state + drift * number / steps))
    return durations


def with_other_process(rng: random.Random, durations_ns: Sequence[float]) -> list[float]:
    """These steps while another process takes the core in bursts of 50 to 500 ms, half of the time: a step
    begun in a burst takes 1.3 to 4 times as long."""
    taken, left_ns, factor = [], 0.0, 1.0
    for duration in durations_ns:
        if left_ns <= 0:
            left_ns, factor = rng.uniform(50, 500) * MS, rng.uniform(1.3, 4) if factor == 1 else 1.0
        taken.append(duration * factor)
        left_ns -= duration * factor
    return taken


def times_of(before: Sequence[StepRow], after: Sequence[StepRow]) -> list[StepTime]:
    """These rows, one right after the other, as steps under versions 1 and 2 of the settings."""
    rows = [(version, row) for version, side in ((1, before), (2, after)) for row in side]
    ends_ns = accumulate(row.step_ns for _, row in rows)
    return [
        StepTime(number, end_ns, row.step_ns, row.samples, row.peak_allocated_bytes, version, row.flags)
        for number, ((version, row), end_ns) in enumerate(zip(rows, ends_ns, strict=True), 1)
    ]
