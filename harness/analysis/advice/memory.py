"""Rules on memory: room for a larger batch, a cache emptied too often, retries, and fragmentation."""

import statistics
from itertools import pairwise

from harness import words
from harness.analysis.advice.known import Known
from harness.analysis.advice.room import available_bytes, expected_peak
from harness.analysis.advice.suggestion import Finding, Gain, Option, Rule, at_most, pct
from harness.analysis.effect import PRACTICAL
from harness.analysis.memory.pressure import TIGHT
from harness.analysis.timing.phases import Part
from harness.analysis.timing.verdict import MIN_STEPS, Bound
from harness.records import StepRow

# Share of the time that does not grow with the batch, from which on a doubled batch wins at least 5 %.
FIXED_SHARE = 0.10
# As for gaps: less shows in no comparison.
EMPTYING_SHARE = 0.02
# Of the steps. A retry frees every cached block, waits for the device, and asks the driver anew: one in a
# hundred steps is no accident.
RETRY_SHARE = 0.01
# Of what is reserved, free in pieces that no request fits and empty_cache cannot give back; the caching
# allocator rounds and splits for a few percent in a healthy run.
SPLIT_SHARE = 0.20
_HINDERED = (Bound.TOO_FEW, Bound.INPUT, Bound.TRANSFER, Bound.LAUNCH)


def find_headroom(known: Known) -> Finding | None:
    """Time that does not grow with the batch (the optimizer; on a GPU the gaps) takes at least 10 %, and a
    doubled batch is expected to need less than 92 % of what the run can have: by the prediction that was
    handed in, else by a line through what is held between steps and this run's own peak."""
    best = known.timing.best
    if known.bound in _HINDERED or best is None:
        return None
    fixed = best.share(Part.OPTIMIZER) + best.share(Part.GAP)
    batch, doubled = known.settings.batch_size, 2 * known.settings.batch_size
    peak, basis = expected_peak(known, doubled)
    available = available_bytes(known)
    if fixed < FIXED_SHARE or peak is None or available is None or peak > TIGHT * available:
        return None
    now = max((row.peak_allocated_bytes or 0 for row in known.settled), default=0)
    return Finding(
        at_most(fixed / 2),
        f"{pct(fixed)} of the time does not grow with the batch, and batch {words.count(doubled)} would need "
        f"about {words.size(peak)} of {words.size(available)}.",
        [
            ("optimizer and gaps", f"{pct(fixed)} of the time"),
            (f"peak with batch {words.count(batch)}", words.size(now)),
            (f"peak with batch {words.count(doubled)}", f"{words.size(peak)}, {basis}"),
            ("what the run can have", words.size(available)),
        ],
        "A doubled batch takes that time half as often for each sample. It changes what is learnt in a step: "
        "the learning rate may have to follow.",
        [Option({"batch_size": doubled}, at_most(fixed / 2))],
    )


def find_emptying(known: Known) -> Finding | None:
    """empty_cache_every, with at least 2 % of the time lost to it: the steps that empty the cache and those
    right after it, which ask the driver for the memory again, against the median of the others. Where every
    step or every second one empties it, the time outside the phases is what it costs."""
    every = known.settings.empty_cache_every
    rows = known.settled
    if not every or len(rows) < MIN_STEPS:
        return None
    struck = [row for row in rows if row.step % every in (0, 1)]
    others = [row for row in rows if row.step % every not in (0, 1)]
    if not struck:
        return None
    if others:
        usual = statistics.median(row.step_ns for row in others)
        lost_ns = sum(row.step_ns - usual for row in struck)
        usually = words.duration(usual)
    else:
        lost_ns = sum(max(0, row.step_ns - _phases_ns(row)) for row in rows if row.step % every == 0)
        usually = words.NOT_AVAILABLE
    share = lost_ns / sum(row.step_ns for row in rows)
    if share < EMPTYING_SHARE:
        return None
    return Finding(
        at_most(share),
        f"The cache is emptied every {words.plural(every, 'step')}, and {pct(share)} of the time goes into "
        "that and into asking for the memory again.",
        [
            ("empty_cache every", words.plural(every, "step")),
            ("steps it touches", f"{words.count(len(struck))} of {words.count(len(rows))}"),
            ("such a step, median", words.duration(statistics.median(row.step_ns for row in struck))),
            ("another step, median", usually),
        ],
        "The allocator keeps what is freed because the next step needs it again. Emptying waits for the "
        "device and helps other processes, seldom this one.",
        [Option({"empty_cache_every": 0}, at_most(share))],
    )


def find_retries(known: Known) -> Finding | None:
    """At least one step in a hundred in which the allocator found no room, gave its cache back and tried
    again, without fragmentation (see there): the run needs nearly all it can have. What can be won is what
    those steps take longer than the others."""
    rows = [row for row in known.settled if row.alloc_retries is not None]
    if not known.is_gpu or len(rows) < MIN_STEPS or find_fragmentation(known) is not None:
        return None
    struck = [row for before, row in pairwise(rows) if (row.alloc_retries or 0) > (before.alloc_retries or 0)]
    if len(struck) < RETRY_SHARE * len(rows):
        return None
    steps = {row.step for row in struck}
    others = [row.step_ns for row in rows if row.step not in steps]
    lost_ns = sum(row.step_ns for row in struck) - len(struck) * (statistics.median(others) if others else 0)
    share = lost_ns / sum(row.step_ns for row in rows) if others else 0.0
    gain = at_most(share) if share >= PRACTICAL else Gain(None, "room in memory, before a request fails")
    batch, times = known.settings.batch_size, known.settings.grad_accumulation
    count = (rows[-1].alloc_retries or 0) - (rows[0].alloc_retries or 0)
    options = []
    if batch > 1:
        halved = {"batch_size": batch // 2, "grad_accumulation": 2 * times}
        options = [Option({"activation_checkpointing": True}, gain), Option(halved, gain)]
        options.reverse()
    return Finding(
        gain,
        f"In {words.plural(len(struck), 'step')} of the last {words.count(len(rows))} the allocator found no "
        f"room and gave its cache back: {words.count(count)} retries.",
        [
            ("retries", words.count(count)),
            ("steps with one", f"{words.count(len(struck))} of {words.count(len(rows))}"),
            ("reserved", words.size(rows[-1].reserved_bytes)),
            ("peak of tensors", words.size(rows[-1].peak_allocated_bytes)),
        ],
        "Each retry frees every cached block and waits for the device; the next larger request ends the run. "
        "Half the batch, accumulated twice, trains alike with less memory.",
        options,
        "Raise the memory cap where there is one, or end what else holds the card.",
    )


def find_fragmentation(known: Known) -> Finding | None:
    """At least 20 % of what the caching allocator holds is free in pieces of split blocks, and at least as
    much lies unused even at the peak: live tensors do not explain it. PyTorch's own out-of-memory message
    points to expandable_segments then."""
    rows = [row for row in known.settled if row.reserved_bytes and row.inactive_split_bytes is not None]
    if not known.is_gpu or len(rows) < MIN_STEPS:
        return None
    last = rows[-1]
    reserved, split = last.reserved_bytes or 1, last.inactive_split_bytes or 0
    recent = max(row.peak_allocated_bytes or 0 for row in rows[-100:])
    unused = reserved - recent
    if min(split, unused) < SPLIT_SHARE * reserved:
        return None
    retries = (last.alloc_retries or 0) - (rows[0].alloc_retries or 0)
    lost = min(split, unused)
    return Finding(
        Gain(None, f"up to {words.size(lost)} of memory"),
        f"{words.size(split)} of the {words.size(reserved)} that the allocator holds are free in pieces, and "
        f"{words.size(unused)} lie unused even at the peak of the steps.",
        [
            ("reserved", words.size(reserved)),
            ("free in pieces of split blocks", f"{words.size(split)} ({pct(split / reserved)})"),
            ("unused at the peak", words.size(unused)),
            ("retries in these steps", words.count(retries)),
        ],
        "Sizes that differ from step to step leave holes that no later tensor fits, and empty_cache cannot "
        "give back a block of which a piece is in use.",
        by_hand=f"Start the run with {words.EXPANDABLE_SEGMENTS}, or pad inputs to a few sizes.",
    )


def _phases_ns(row: StepRow) -> int:
    return row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns + row.optimizer_ns


RULES = (
    Rule(
        "headroom",
        "Use the free memory for a larger batch",
        f"at least {pct(FIXED_SHARE)} of the time does not grow with the batch, and twice the batch needs "
        f"less than {pct(TIGHT)} of the memory",
        "a doubled batch takes that time half as often per sample: at least 5 %; memory as the Memory page's "
        "own warning",
        "optimizer and gaps; the peak, predicted or by a line through this run's own",
        "twice the `batch_size`",
        find_headroom,
    ),
    Rule(
        "emptying",
        "Stop emptying the cache so often",
        f"`empty_cache_every` costs at least {pct(EMPTYING_SHARE)} of the time",
        "less shows in no comparison; PyTorch docs, torch.cuda.empty_cache",
        "the steps that empty the cache, and those after, against the others",
        "`empty_cache_every=0`",
        find_emptying,
    ),
    Rule(
        "retries",
        "Need less memory: the allocator keeps starting over",
        f"retries in at least {pct(RETRY_SHARE)} of the steps, without fragmentation",
        "PyTorch docs, torch.cuda.memory_stats: num_alloc_retries should be 0",
        "the allocator's count of retries, and the duration of those steps",
        "half the `batch_size` with twice the `grad_accumulation`, then `activation_checkpointing`",
        find_retries,
    ),
    Rule(
        "fragmentation",
        "Keep memory in one piece",
        f"at least {pct(SPLIT_SHARE)} of what is reserved is free in pieces, and as much unused at the peak",
        "PyTorch's own out-of-memory message, and its notes on CUDA's memory management",
        "reserved bytes, split blocks, peaks, retries",
        "none: the allocator is configured when a process starts",
        find_fragmentation,
    ),
)
