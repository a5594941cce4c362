"""What is said about a verdict on a leak: one plain sentence that can be taken back, and the usual cause."""

from typing import NamedTuple

from harness import words
from harness.analysis.leak.growth import LEAST_FOR_LEAK, Judgement
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepRow

_GPU_NAMES = {
    LeakSeries.ALLOCATED: "memory in live tensors",
    LeakSeries.FRAGMENTATION: "memory that is reserved and not used",
    LeakSeries.HOST: "the process's memory on the host",
    LeakSeries.WORKERS: "the memory of the loader's workers",
}
_CPU_NAMES = _GPU_NAMES | {
    LeakSeries.ALLOCATED: "memory in live tensors and other objects on the heap",
    LeakSeries.FRAGMENTATION: "memory that lies free in the heap and is not given back",
    LeakSeries.HOST: "the process's memory outside the heap's live objects",
}
_SMALL_BYTES = 32 * 2**10
_SAME = 0.5, 2.0
"""Two sizes are alike within these ratios."""


class Told(NamedTuple):
    """What a sentence is made of. `is_rising`: before it was held against the other series."""

    series: LeakSeries
    judgement: Judgement
    samples: int
    steps_left: int | None
    on_cpu: bool
    is_rising: bool

    @property
    def name(self) -> str:
        """What the series is, in words."""
        return (_CPU_NAMES if self.on_cpu else _GPU_NAMES)[self.series]

    @property
    def capitalised(self) -> str:
        """The name at the start of a sentence."""
        return self.name[0].upper() + self.name[1:]


def sentence(told: Told) -> str:
    """What is thought of the series now."""
    judgement = told.judgement
    since = f"since step {words.count(judgement.since_step)}"
    match judgement.verdict:
        case LeakVerdict.WARM_UP:
            return f"Warming up: the first steps say nothing yet about {told.name}."
        case LeakVerdict.TOO_EARLY:
            seen = f"{words.count(told.samples)} of {LEAST_FOR_LEAK} readings"
            return f"Too early to say about {told.name}: {seen} {since}."
        case LeakVerdict.LEAK:
            return f"{_growth(told, since)}{_end(told)} This is taken back if it levels off."
        case LeakVerdict.WATCH:
            return f"{_growth(told, since)} It is too early to call that a leak."
        case LeakVerdict.SAWTOOTH:
            return f"{told.capitalised} rises and falls back {since}; nothing stays.{_limit(told)}"
        case LeakVerdict.STEADY:
            if told.is_rising:
                return f"{told.capitalised} rises along with what is said to grow beside it, not by itself."
            return f"{told.capitalised} shows no lasting growth {since}.{_limit(told)}"


def grown(row: LeakRow, on_cpu: bool) -> str:
    """What the verdict in `row` says, looking back at it."""
    name = (_CPU_NAMES if on_cpu else _GPU_NAMES)[LeakSeries(row.series)]
    return (
        f"{name[0].upper()}{name[1:]} had grown by {words.size(row.bytes_per_step)} a step since step "
        f"{words.count(row.since_step)}."
    )


def _growth(told: Told, since: str) -> str:
    found = told.judgement.trend
    if found is None:
        return f"{told.capitalised} was growing {since}; what came after a jump is too short to say more."
    low, high = words.size(max(found.low, 0.0)), words.size(found.high)
    return (
        f"{told.capitalised} has grown by {words.size(found.slope)} a step {since} (between {low} and "
        f"{high}), "
        f"{words.size(told.judgement.risen_bytes)} in all, and nothing of it came back."
    )


def _end(told: Told) -> str:
    if told.steps_left is None:
        return ""
    if told.steps_left == 0:
        return " The limit is reached: there is no room left for it to grow."
    return f" At this rate memory runs out in about {words.plural(_rounded(told.steps_left), 'step')}."


def _limit(told: Told) -> str:
    limit = told.judgement.detection_limit
    if limit is None:
        return ""
    return f" A leak of {words.size(limit)} a step or more would most likely have shown by now."


def _rounded(steps: int) -> int:
    """To two digits: no more is known."""
    return int(float(f"{steps:.2g}"))


def cause(told: Told, rising: set[LeakSeries], newest: StepRow) -> str | None:
    """The usual cause, where what was measured speaks for one."""
    match told.series:
        case LeakSeries.WORKERS:
            if rising & {LeakSeries.ALLOCATED, LeakSeries.HOST}:
                return None
            return (
                "Only the loader's worker processes grow: usually a data set that keeps what it has loaded, "
                "once in each worker, or whose Python objects are copied page by page as they are read."
            )
        case LeakSeries.FRAGMENTATION:
            return _fragmentation_cause(told)
        case LeakSeries.HOST:
            return (
                "Live tensors do not grow, the process does: usually Python objects that are collected and "
                "never dropped, such as log lines, records of each step or decoded samples."
            )
        case LeakSeries.ALLOCATED:
            return _tensor_cause(told, rising, newest)


def _fragmentation_cause(told: Told) -> str:
    if told.on_cpu:
        return (
            "What is in use is flat while the heap keeps growing: usually small objects that live long lie "
            "between large ones that come and go, each a little larger than the holes left before."
        )
    return (
        "Live tensors are flat while the allocator takes ever more: usually sizes that differ from step to "
        "step, none of which fits the holes left before. Padding to a few sizes helps, or "
        "expandable_segments."
    )


def _tensor_cause(told: Told, rising: set[LeakSeries], newest: StepRow) -> str | None:
    slope = told.judgement.trend.slope if told.judgement.trend else 0.0
    if not told.on_cpu and slope <= _SMALL_BYTES and LeakSeries.HOST in rising:
        return (
            "A few bytes on the device and more on the host with every step: usually a loss or metric "
            "that is added up with its graph; add loss.detach() or loss.item() instead."
        )
    if newest.peak_allocated_bytes is None or newest.allocated_bytes is None:
        return None
    in_a_step = newest.peak_allocated_bytes - newest.allocated_bytes
    if in_a_step > 2**20 and _SAME[0] <= slope / in_a_step <= _SAME[1]:
        return (
            f"Every step leaves about as much behind as it needs while it runs ({words.size(in_a_step)}): "
            "usually outputs, losses or a hidden state that are kept with their graph; detach() them first."
        )
    return None
