"""One sentence on what bounds a run, from the time of its steps; then why, then what next. Pure.

A verdict is given only from evidence, with thresholds that say what would be gained: a phase that takes the
share s of the time can at best make the run 1 / (1 - s) times as fast.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.timing.phases import Part, Timing

# Fewer settled steps, and it is too early: as for observed changes.
MIN_STEPS = 16
# Waiting for the loader; without it the run would be at most 1.25 times as fast. The Live page turns amber at
# the same share.
INPUT_SHARE = 0.20
# A device's gaps: below this, batches that arrive at once gain less than 11 %.
IDLE_SHARE = 0.10
# Copies to the device: the same.
COPY_SHARE = 0.10
# Launch-bound is a run of which at least half of the steps are.
LAUNCH_SHARE = 0.50
# The optimizer does not grow with the batch: from here on a doubled batch gives at least 18 % more samples a
# second, 1 / (1 - 0.3 / 2).
OPTIMIZER_SHARE = 0.30
# Time in no phase, or gaps that neither loader nor issuing explains.
OUTSIDE_SHARE = 0.20
# Forward and backward together; less, and no phase stands out.
COMPUTE_SHARE = 0.60
# One step in a hundred that takes so many times the median is told beside the verdict.
TAIL = 2.0


class Bound(StrEnum):
    """What bounds a run."""

    TOO_FEW = "too few steps"
    INPUT = "input-bound"
    TRANSFER = "transfer-bound"
    LAUNCH = "launch-bound"
    OPTIMIZER = "optimizer-heavy"
    OUTSIDE = "outside the phases"
    COMPUTE = "compute-bound"
    MIXED = "mixed"


class Verdict(NamedTuple):
    """The sentence, the evidence for it, and what to try."""

    bound: Bound
    sentence: str
    why: tuple[str, ...]
    next: tuple[str, ...]


_NEXT = {
    Bound.INPUT: (
        "Load beside the training: loader workers, prefetching, cheaper preprocessing.",
        "Watch the data wait fall in the comparison of settings below.",
    ),
    Bound.TRANSFER: ("Copy from pinned memory without blocking, or send smaller types (bytes, not floats).",),
    Bound.LAUNCH: (
        "Give the device more work per launch: a larger batch, torch.compile, a fused optimizer.",
    ),
    Bound.OPTIMIZER: (
        "A larger batch or gradient accumulation takes the optimizer's time fewer times per sample; a fused "
        "optimizer makes it shorter.",
    ),
    Bound.OUTSIDE: (
        "Look for what runs between the phases: metrics read off the device, empty_cache, other work of the "
        "program or of the machine.",
    ),
    Bound.COMPUTE: (
        "Loader, copies and issuing keep up. Faster arithmetic is what is left, where not yet in use: "
        "mixed precision, TF32, channels_last, torch.compile.",
    ),
    Bound.MIXED: ("No single phase is worth much by itself; the table shows where the time goes.",),
}


def verdict(timing: Timing, is_asynchronous: bool) -> Verdict:
    """What bounds the run in this range. `is_asynchronous`: the device works beside the CPU."""
    cpu = timing.cpu
    if cpu is None or timing.looked_at < MIN_STEPS:
        sentence = f"Too few steps to say what bounds this run: {timing.looked_at} settled of {MIN_STEPS}."
        left_out = f"{words.plural(timing.left_out, 'step')} of warm-up or after a change left out."
        return Verdict(Bound.TOO_FEW, sentence, (left_out,) if timing.left_out else (), ())
    if is_asynchronous and timing.device is None:
        sentence = "The device's own times are missing, and issue times alone do not tell what bounds a run."
        return Verdict(Bound.TOO_FEW, sentence, (), ())
    bound, sentence, why = _asynchronous(timing) if is_asynchronous else _synchronous(timing)
    return Verdict(bound, sentence, (*why, *_tail(timing)), _NEXT[bound])


def _synchronous(timing: Timing) -> tuple[Bound, str, Sequence[str]]:
    cpu = timing.cpu
    assert cpu is not None
    wait, optimizer, residual = (cpu.share(part) for part in (Part.DATA_WAIT, Part.OPTIMIZER, Part.RESIDUAL))
    computing = cpu.share(Part.FORWARD) + cpu.share(Part.BACKWARD)
    shares = f"Forward and backward pass take {_pct(computing)}, the optimizer {_pct(optimizer)}."
    if wait >= INPUT_SHARE:
        sentence = f"Input-bound: {_pct(wait)} of the time goes by waiting for the loader."
        return Bound.INPUT, sentence, (_median_wait(timing), shares)
    if cpu.share(Part.H2D) >= COPY_SHARE:
        sentence = f"Transfer-bound: {_pct(cpu.share(Part.H2D))} of the time goes into copying batches."
        return Bound.TRANSFER, sentence, (shares,)
    return _by_share(computing, optimizer, residual, [f"The loader takes {_pct(wait)}."])


def _asynchronous(timing: Timing) -> tuple[Bound, str, Sequence[str]]:
    cpu, device, launch = timing.cpu, timing.device, timing.launch
    assert cpu is not None
    assert device is not None
    assert launch is not None
    wait, gap, copy = cpu.share(Part.DATA_WAIT), device.share(Part.GAP), device.share(Part.H2D)
    spread = device.spread(Part.GAP)
    assert spread is not None
    idle = (
        f"Between two steps the device stood idle for at least {words.duration(spread.p50)} in the median, "
        f"{_pct(gap)} of the time in all."
    )
    issue = (
        f"The CPU issues a step in {words.duration(launch.issue_ns)}, the device takes "
        f"{words.duration(launch.device_ns)} (medians)."
    )
    # Between the micro-batches of a step the device's rest is the wait for the next one.
    starved = gap + device.share(Part.RESIDUAL)
    if wait >= INPUT_SHARE and starved >= IDLE_SHARE:
        sentence = (
            f"Input-bound: the loop waits for the loader {_pct(wait)} of the time, and the device stands "
            f"idle for at least {_pct(starved)}."
        )
        return Bound.INPUT, sentence, (_median_wait(timing), issue)
    if launch.share >= LAUNCH_SHARE:
        sentence = (
            f"Launch-bound: in {_pct(launch.share)} of the steps the CPU took as long to issue the work as "
            "the device to do it."
        )
        return Bound.LAUNCH, sentence, (issue, idle)
    if copy >= COPY_SHARE:
        sentence = f"Transfer-bound: {_pct(copy)} of the device's time goes into copying batches to it."
        return Bound.TRANSFER, sentence, (idle,)
    if gap >= OUTSIDE_SHARE:
        sentence = f"The device stands idle between steps for at least {_pct(gap)} of the time."
        waits = f"The loop waits for the loader {_pct(wait)} of the time."
        return Bound.OUTSIDE, sentence, (waits, issue)
    computing = device.share(Part.FORWARD) + device.share(Part.BACKWARD)
    optimizer, residual = device.share(Part.OPTIMIZER), device.share(Part.RESIDUAL)
    hidden = [f"The loader's {_pct(wait)} of the loop passes while the device works."] if wait > gap else []
    return _by_share(computing, optimizer, residual, [idle, *hidden, issue])


def _by_share(
    computing: float, optimizer: float, residual: float, why: list[str]
) -> tuple[Bound, str, Sequence[str]]:
    """What the shares say when neither loader nor copies nor issuing hold the run up."""
    if optimizer >= OPTIMIZER_SHARE:
        sentence = f"Optimizer-heavy: {_pct(optimizer)} of the time goes into updating the weights."
        return Bound.OPTIMIZER, sentence, (f"Forward and backward pass take {_pct(computing)}.", *why)
    rest = f"The optimizer takes {_pct(optimizer)}, what lies in no phase {_pct(residual)}."
    if residual >= OUTSIDE_SHARE:
        sentence = f"{_pct(residual)} of the time lies outside the phases."
        return Bound.OUTSIDE, sentence, (f"Forward and backward pass take {_pct(computing)}.", *why)
    if computing >= COMPUTE_SHARE:
        sentence = f"Compute-bound: {_pct(computing)} of the time goes into forward and backward pass."
        return Bound.COMPUTE, sentence, (rest, *why)
    sentence = f"No phase stands out: forward and backward pass take {_pct(computing)} of the time."
    return Bound.MIXED, sentence, (rest, *why)


def _median_wait(timing: Timing) -> str:
    assert timing.cpu is not None
    wait = timing.cpu.spread(Part.DATA_WAIT)
    assert wait is not None
    return (
        f"The wait for a step's batches: {words.duration(wait.p50)} in the median, "
        f"{words.duration(wait.p95)} in one step of twenty."
    )


def _tail(timing: Timing) -> tuple[str, ...]:
    step = timing.cpu.step if timing.cpu is not None else None
    if step is None or step.p99 < TAIL * step.p50 or timing.looked_at < 100:
        return ()
    ratio = words.figure(step.p99 / step.p50, 2)
    return (f"One step in a hundred takes {ratio} times the median and longer; see the slowest below.",)


def _pct(share: float) -> str:
    return words.percent(100 * share)
