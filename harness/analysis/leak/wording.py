"""Sentences on a leak verdict, and its usual cause."""

from typing import NamedTuple

from harness import words
from harness.analysis.leak.growth import CALM, RISING, Judgment
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepRow

_GPU_NAMES = {
    LeakSeries.ALLOCATED: "memory in live tensors",
    LeakSeries.FRAGMENTATION: "memory that is reserved but unallocated",
    LeakSeries.HOST: "the process's memory on the host",
    LeakSeries.WORKERS: "the memory of the loader's workers",
}
_CPU_NAMES = _GPU_NAMES | {
    LeakSeries.ALLOCATED: "memory in live tensors and other objects on the heap",
    LeakSeries.FRAGMENTATION: "free memory in the heap that is not returned to the system",
    LeakSeries.HOST: "the process's memory outside the heap's live objects",
}
_PROCESS = "the memory of the process"
# The cause of growth of live memory on the CPU if a hunt found no tensors that explain it.
BESIDE_TENSORS = (
    "The heap grows, live tensors of the training thread do not: usually NumPy arrays, bytes, strings, large "
    "lists, other threads' tensors or a library's memory that is appended and never removed, such as a "
    "cache, decoded samples or records of each step; or autograd nodes of a sum such as total += loss, "
    "where loss.item() has none."
)
_ONLY_THE_PROCESS = "Live tensors do not grow, the process does"
# Said where the whole process is judged in place of live memory.
MANY_BLOCKS = (
    "The heap has so many blocks that live memory is rarely read: usually outputs, losses, gradients or "
    "records of each step in a list that only grows."
)
# Growth outside the CPU's heap is named beside that within from this share of it on.
LEAST_OUTSIDE = 0.5
_SMALL_BYTES = 32 * 2**10
# Two sizes are similar if their ratio is within these limits.
_SIMILAR = 0.5, 2.0


class VerdictContext(NamedTuple):
    """The values in a sentence. `is_rising` is the verdict before attribution among the series, and
    `required` the number of readings for the verdict "leak". `inputs_grow` is whether that verdict was
    replaced because steps need more and more memory. `outside_slope` is the least growth of the process
    outside the CPU's heap, in bytes per step, if that rises too. `allocated` is the verdict on live
    memory. `faster_slope` is the growth of what the limit covers, in bytes per step, if it is faster.
    `is_process` is whether the whole process was judged in place of live memory."""

    series: LeakSeries
    judgment: Judgment
    required: int
    steps_left: int | None
    on_cpu: bool
    is_rising: bool
    inputs_grow: bool = False
    outside_slope: float | None = None
    allocated: LeakVerdict = LeakVerdict.TOO_EARLY
    faster_slope: float | None = None
    is_process: bool = False

    @property
    def name(self) -> str:
        """The series in words."""
        if self.is_process:
            return _PROCESS
        return (_CPU_NAMES if self.on_cpu else _GPU_NAMES)[self.series]

    @property
    def capitalized(self) -> str:
        """The name at the start of a sentence."""
        return self.name[0].upper() + self.name[1:]


def sentence(context: VerdictContext) -> str:
    """Return the sentence on the current verdict."""
    judgment = context.judgment
    since = f"since step {words.count(judgment.since_step)}"
    match judgment.verdict:
        case LeakVerdict.WARM_UP:
            return f"Warming up: the first steps are not evaluated for {context.name}."
        case LeakVerdict.TOO_EARLY:
            # Not the number so far: the verdict is not written again for each reading. More are required once
            # the steps turn out to differ.
            required = words.count(context.required)
            return (
                f"Too early for a verdict on {context.name}; a leak is reported after {required} readings at "
                "the earliest."
            )
        case LeakVerdict.LEAK:
            return (
                f"{_growth(context, since)}{_outside(context)}{_end(context)} A cache that fills looks the "
                "same until it is full: the verdict is withdrawn if the growth ends."
            )
        case LeakVerdict.WATCH:
            return f"{_growth(context, since)}{_why_no_leak(context)}"
        case LeakVerdict.SAWTOOTH:
            text = f"{context.capitalized} rises and falls back {since}; none of it is retained."
            return f"{text}{_limit(context)}"
        case LeakVerdict.STEADY:
            if context.is_rising:
                return f"{context.capitalized} rises with another series, not by itself."
            return f"{context.capitalized} shows no lasting growth {since}.{_limit(context)}"


def _why_no_leak(context: VerdictContext) -> str:
    """Return the end of the sentence on growth under watch."""
    judgment = context.judgment
    if judgment.full_since is not None:
        full = words.count(judgment.full_since)
        return f" Since step {full} it has hardly grown, as a cache that is full."
    if context.inputs_grow:
        return (
            f"{_end(context)} So has what each step needs, as with growing inputs: what is retained may "
            "level off with them."
        )
    if judgment.settles_below is not None:
        return (
            f" Until holes have settled, the heap may grow by {words.size(judgment.settles_below)}, three "
            "times what a step needs beyond what it retains, or half of what live memory has grown by."
        )
    return f'{_end(context)} It is too early for the verdict "leak".'


def no_site(why: str) -> str:
    """Return the sentence on a leak without an allocation site, for the reason `why`, a sentence."""
    return f"The line that keeps the memory was not searched for. {why}"


def growth(row: LeakRow, on_cpu: bool, began_step: int | None = None) -> str:
    """Return the verdict in `row` as a sentence in the past tense; the growth began at `began_step`, and may
    be judged by a later part of it."""
    is_process = row.cause == MANY_BLOCKS
    name = _PROCESS if is_process else (_CPU_NAMES if on_cpu else _GPU_NAMES)[LeakSeries(row.series)]
    since, rate = words.count(row.since_step), f"by {words.size(row.bytes_per_step)} per step"
    begin = f"{name[0].upper()}{name[1:]} had grown"
    if began_step is None or began_step >= row.since_step:
        return f"{begin} {rate} since step {since}."
    return f"{begin} since step {words.count(began_step)}, {rate} since step {since}."


def _growth(context: VerdictContext, since: str) -> str:
    fit = context.judgment.trend
    if fit is None:
        return (
            f"{context.capitalized} was growing {since}; after a jump there are too few readings for a slope."
        )
    low, high = words.size(max(fit.low, 0.0)), words.size(fit.high)
    return (
        f"{context.capitalized} has grown by {words.size(fit.slope)} per step {since} (between {low} and "
        f"{high}), {words.size(context.judgment.risen_bytes)} in total, and none of it was freed."
    )


def _outside(context: VerdictContext) -> str:
    """Python's small objects are outside the heap: of a list of floats only a quarter is in it."""
    fit, outside = context.judgment.trend, context.outside_slope
    if context.series is not LeakSeries.ALLOCATED or fit is None or outside is None:
        return ""
    if outside < LEAST_OUTSIDE * fit.slope:
        return ""
    return (
        f" The process grows by at least another {words.size(outside)} per step outside the heap, where "
        "Python has its small objects: usually numbers, strings or records of each step in a list that only "
        "grows."
    )


def _end(context: VerdictContext) -> str:
    if context.steps_left is None:
        return ""
    if context.steps_left == 0:
        return " The limit is reached: it cannot grow further."
    end = f"memory runs out in {words.estimate(context.steps_left, 'step')}."
    if context.faster_slope is None:
        return f" At this rate {end}"
    covered = "The process as a whole" if context.on_cpu else "Memory that the allocator cannot release"
    return f" {covered} grows by {words.size(context.faster_slope)} per step: at that rate {end}"


def _limit(context: VerdictContext) -> str:
    limit = context.judgment.detection_limit
    if limit is None:
        return ""
    return f" A leak of {words.size(limit)} per step or more would most likely have been detected by now."


def cause(context: VerdictContext, rising: set[LeakSeries], newest: StepRow) -> str | None:
    """Return the usual cause, if the measurements indicate one."""
    match context.series:
        case LeakSeries.WORKERS:
            if rising & {LeakSeries.ALLOCATED, LeakSeries.HOST}:
                return None
            return (
                "Only the loader's worker processes grow: usually a data set that caches loaded samples in "
                "each worker, or with Python objects whose pages are copied as they are read."
            )
        case LeakSeries.FRAGMENTATION:
            return _fragmentation_cause(context)
        case LeakSeries.HOST:
            is_beside = context.allocated in RISING
            begin = "The process grows more than its live tensors" if is_beside else _ONLY_THE_PROCESS
            return (
                f"{begin}: usually Python objects that are appended and never removed, such as log lines, "
                "records of each step or decoded samples."
            )
        case LeakSeries.ALLOCATED:
            return _tensor_cause(context, rising, newest)


def _fragmentation_cause(context: VerdictContext) -> str:
    begin = _beside_holes(context)
    if context.on_cpu:
        # The nodes of graphs are live memory: where that is steady, none are kept.
        nodes = "" if context.allocated in CALM else ", such as autograd nodes that are kept with a result,"
        return (
            f"{begin}: usually small long-lived objects{nodes} between large transient ones, each slightly "
            "larger than the existing holes."
        )
    return (
        f"{begin}: usually sizes that vary from step to step and do not fit the existing free blocks. "
        "Padding to a few sizes or expandable_segments helps."
    )


def _beside_holes(context: VerdictContext) -> str:
    """Return what is known about live memory beside the growth of free memory, as a main clause."""
    live, is_constant, grows = ("live tensors", "are constant", "grow")
    whole = "reserved memory"
    if context.on_cpu:
        live, is_constant, grows, whole = "live memory", "is constant", "grows", "the heap"
    if context.allocated in CALM:
        return f"{live.capitalize()} {is_constant} while {whole} keeps growing"
    beyond = f"{whole.capitalize()} keeps growing beyond {live}"
    if context.allocated in RISING:
        return f"{beyond}, which {grows} too, but more slowly"
    return f"{beyond}; it is too early to say whether {live} {grows} too"


def _tensor_cause(context: VerdictContext, rising: set[LeakSeries], newest: StepRow) -> str | None:
    if context.is_process:
        return MANY_BLOCKS
    slope = context.judgment.trend.slope if context.judgment.trend else 0.0
    if not context.on_cpu and slope <= _SMALL_BYTES and LeakSeries.HOST in rising:
        return (
            "A few bytes on the device and more on the host in every step: usually a loss or metric that is "
            "summed with its graph; add loss.detach() or loss.item() instead."
        )
    if newest.peak_allocated_bytes is None or newest.allocated_bytes is None:
        return None
    transient_bytes = newest.peak_allocated_bytes - newest.allocated_bytes
    if transient_bytes > 2**20 and _SIMILAR[0] <= slope / transient_bytes <= _SIMILAR[1]:
        return (
            f"Every step retains about as much as its transient memory ({words.size(transient_bytes)}): "
            "usually outputs, losses or a hidden state that are kept with their graph; detach() them first."
        )
    return None
