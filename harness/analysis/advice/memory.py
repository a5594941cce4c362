"""Rules on memory: headroom for a larger batch, empty_cache too often, retries, and fragmentation."""

import statistics
from itertools import pairwise

from harness import words
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.free_memory import available_bytes, expected_peak
from harness.analysis.advice.suggestion import Diagnosis, Gain, Option, Rule, at_most, pct
from harness.analysis.effect import PRACTICAL
from harness.analysis.memory.pressure import TIGHT
from harness.analysis.timing.phases import StepPart
from harness.analysis.timing.verdict import MIN_STEPS, Bound
from harness.records.run import StepRow

# Share of the time that does not scale with the batch, from which a doubled batch saves at least 5 %.
FIXED_SHARE = 0.10
# As for gaps: less shows in no comparison.
EMPTY_CACHE_SHARE = 0.02
# Share of steps with a retry. A retry frees every cached block, synchronizes, and allocates from the driver
# again: one in a hundred steps is no accident.
RETRY_SHARE = 0.01
# Share of reserved memory that is free in split blocks, where large requests do not fit and empty_cache
# cannot release it; in a healthy run the caching allocator loses a few percent by rounding and splitting.
SPLIT_SHARE = 0.20
_OTHER_BOTTLENECKS = (Bound.TOO_FEW, Bound.INPUT, Bound.TRANSFER, Bound.LAUNCH)


def find_headroom(run: RunEvidence) -> Diagnosis | None:
    """Time that does not scale with the batch (the optimizer; on a GPU also the gaps) takes at least 10 %,
    and a doubled batch is expected to need less than 92 % of the available memory: by a prediction where
    there is one, of a script by the peaks of its steps, else by a line through the memory allocated between
    steps and this run's peak. None while memory leaks: what is free now is not free for long."""
    best = run.timing.best
    if run.bound in _OTHER_BOTTLENECKS or best is None or "batch_size" not in run.names or run.is_leaking:
        return None
    fixed = best.share(StepPart.OPTIMIZER) + best.share(StepPart.GAP)
    batch, doubled = run.settings.batch_size, 2 * run.settings.batch_size
    peak, basis = expected_peak(run, doubled)
    available = available_bytes(run)
    if fixed < FIXED_SHARE or peak is None or available is None or peak > TIGHT * available:
        return None
    peaks = (row.peak_allocated_bytes for row in run.settled)
    now = max((peak_bytes for peak_bytes in peaks if peak_bytes is not None), default=None)
    return Diagnosis(
        at_most(fixed / 2),
        f"{pct(fixed)} of the time does not scale with the batch, and a batch of {words.count(doubled)} "
        f"would need about {words.size(peak)} of {words.size(available)}.",
        [
            ("optimizer and gaps", f"{pct(fixed)} of the time"),
            (f"peak with batch {words.count(batch)}", words.size(now)),
            (f"peak with batch {words.count(doubled)}", f"{words.size(peak)}, {basis}"),
            ("memory available to this run", words.size(available)),
        ],
        "A doubled batch halves that time per sample. It changes the training itself: the learning rate may "
        "have to be adapted.",
        [Option({"batch_size": doubled}, at_most(fixed / 2))],
    )


def find_empty_cache(run: RunEvidence) -> Diagnosis | None:
    """empty_cache_every costs at least 2 % of the time: the steps that empty the cache and those right after,
    which allocate the memory from the driver again, against the median of the others. With a period of one
    or two steps, the cost is the time outside the phases."""
    every = run.settings.empty_cache_every
    rows = run.settled
    if not every or len(rows) < MIN_STEPS:
        return None
    affected = [row for row in rows if row.step % every in (0, 1)]
    others = [row for row in rows if row.step % every not in (0, 1)]
    if not affected:
        return None
    if others:
        median_ns = statistics.median(row.step_ns for row in others)
        lost_ns = sum(row.step_ns - median_ns for row in affected)
        other_step = words.duration(median_ns)
    else:
        lost_ns = sum(max(0, row.step_ns - _phases_ns(row)) for row in rows if row.step % every == 0)
        other_step = words.NOT_AVAILABLE
    share = lost_ns / sum(row.step_ns for row in rows)
    if share < EMPTY_CACHE_SHARE:
        return None
    return Diagnosis(
        at_most(share),
        f"The cache is emptied every {words.plural(every, 'step')}, and {pct(share)} of the time goes into "
        "that and into allocating the memory again.",
        [
            ("empty_cache every", words.plural(every, "step")),
            ("affected steps", f"{words.count(len(affected))} of {words.count(len(rows))}"),
            ("affected step, median", words.duration(statistics.median(row.step_ns for row in affected))),
            ("other step, median", other_step),
        ],
        "The allocator caches freed memory because the next step needs it again. empty_cache waits for the "
        "device and helps other processes, rarely this one.",
        [Option({"empty_cache_every": 0}, at_most(share))],
    )


def find_retries(run: RunEvidence) -> Diagnosis | None:
    """At least one step in a hundred in which an allocation failed, the allocator released its cache and
    tried again, without fragmentation (see there): the run needs nearly all available memory. The time saved
    is at most the extra time of those steps."""
    rows = [row for row in run.settled if row.alloc_retries is not None]
    if not run.is_gpu or len(rows) < MIN_STEPS or find_fragmentation(run) is not None:
        return None
    affected = [
        row for before, row in pairwise(rows) if (row.alloc_retries or 0) > (before.alloc_retries or 0)
    ]
    if len(affected) < RETRY_SHARE * len(rows):
        return None
    steps = {row.step for row in affected}
    others = [row.step_ns for row in rows if row.step not in steps]
    usual_ns = statistics.median(others) if others else 0
    lost_ns = sum(row.step_ns for row in affected) - len(affected) * usual_ns
    share = lost_ns / sum(row.step_ns for row in rows) if others else 0.0
    gain = at_most(share) if share >= PRACTICAL else Gain(None, "free memory, before an allocation fails")
    batch, times = run.value("batch_size") or 1, run.value("grad_accumulation")
    count = (rows[-1].alloc_retries or 0) - (rows[0].alloc_retries or 0)
    options = [Option({"activation_checkpointing": True}, gain)]
    if batch > 1:
        halved = {"batch_size": batch // 2} | ({} if times is None else {"grad_accumulation": 2 * times})
        options.insert(0, Option(halved, gain))
    return Diagnosis(
        gain,
        f"In {words.plural(len(affected), 'step')} of the last {words.count(len(rows))} an allocation failed "
        f"and the allocator released its cache to retry: {words.count(count)} retries.",
        [
            ("retries", words.count(count)),
            ("steps with a retry", f"{words.count(len(affected))} of {words.count(len(rows))}"),
            ("reserved", words.size(rows[-1].reserved_bytes)),
            ("peak allocated", words.size(rows[-1].peak_allocated_bytes)),
        ],
        "Each retry frees every cached block and waits for the device; the next larger allocation runs out "
        "of memory. Half the batch with twice the gradient accumulation trains the same with less memory.",
        options,
        "Raise the memory cap if one is set, or stop other processes on the GPU.",
    )


def find_fragmentation(run: RunEvidence) -> Diagnosis | None:
    """At least 20 % of reserved memory is free in split blocks, and at least as much is unused even at the
    peak, so live tensors do not explain it. PyTorch's out-of-memory message suggests expandable_segments in
    this case."""
    rows = [row for row in run.settled if row.reserved_bytes and row.inactive_split_bytes is not None]
    if not run.is_gpu or len(rows) < MIN_STEPS:
        return None
    last = rows[-1]
    reserved, split = last.reserved_bytes or 1, last.inactive_split_bytes or 0
    recent = max(row.peak_allocated_bytes or 0 for row in rows[-100:])
    unused = reserved - recent
    if min(split, unused) < SPLIT_SHARE * reserved:
        return None
    retries = (last.alloc_retries or 0) - (rows[0].alloc_retries or 0)
    lost = min(split, unused)
    return Diagnosis(
        Gain(None, f"up to {words.size(lost)} of memory"),
        f"{words.size(split)} of the {words.size(reserved)} reserved are free in split blocks, and "
        f"{words.size(unused)} are unused even at the peak of the steps.",
        [
            ("reserved", words.size(reserved)),
            ("free in split blocks", f"{words.size(split)} ({pct(split / reserved)})"),
            ("unused at the peak", words.size(unused)),
            ("retries in these steps", words.count(retries)),
        ],
        "Sizes that vary from step to step leave gaps that later tensors do not fit in, and empty_cache "
        "cannot release a block that is partly in use.",
        by_hand=f"Start the run with {words.EXPANDABLE_SEGMENTS}, or pad inputs to a few sizes.",
    )


def _phases_ns(row: StepRow) -> int:
    return row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns + row.optimizer_ns


RULES = (
    Rule(
        "headroom",
        "Use the free memory for a larger batch",
        f"at least {pct(FIXED_SHARE)} of the time does not scale with the batch, and twice the batch needs "
        f"less than {pct(TIGHT)} of the memory; not while memory leaks",
        "a doubled batch halves that time per sample: at least 5 %; the memory limit is that of the Memory "
        "page's alert",
        "optimizer and gaps; the peak, predicted or by a line through this run's peak",
        "twice the `batch_size`",
        find_headroom,
    ),
    Rule(
        "empty-cache",
        "Empty the cache less often",
        f"`empty_cache_every` costs at least {pct(EMPTY_CACHE_SHARE)} of the time",
        "less shows in no comparison; PyTorch docs, torch.cuda.empty_cache",
        "the steps that empty the cache and those right after, against the others",
        "`empty_cache_every=0`",
        find_empty_cache,
    ),
    Rule(
        "retries",
        "Reduce memory: allocations are retried",
        f"retries in at least {pct(RETRY_SHARE)} of the steps, without fragmentation",
        "PyTorch docs, torch.cuda.memory_stats: num_alloc_retries should be 0",
        "the allocator's count of retries, and the duration of those steps",
        "half the `batch_size` with twice the `grad_accumulation`, then `activation_checkpointing`",
        find_retries,
    ),
    Rule(
        "fragmentation",
        "Reduce fragmentation",
        f"at least {pct(SPLIT_SHARE)} of reserved memory is free in split blocks, and as much unused at the "
        "peak",
        "PyTorch's own out-of-memory message, and its notes on CUDA's memory management",
        "reserved bytes, split blocks, peaks, retries",
        "none: the allocator is configured when a process starts",
        find_fragmentation,
    ),
)
