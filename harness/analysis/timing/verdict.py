"""Verdict on the bottleneck of a run from its step times, with evidence and next steps. Pure functions.

The thresholds follow from the possible gain: removing a phase that takes the share s of the time makes the
run at most 1 / (1 - s) times as fast.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.timing.phases import ClockTimes, StepPart, Timing

# Steady-state steps needed for a verdict, as for observed changes.
MIN_STEPS = 16
# Data wait; without it a run is at most 1.25 times as fast. The Live page turns amber at the same share.
INPUT_SHARE = 0.20
# Gaps of a device; below this share, batches without any wait gain less than 11 %.
IDLE_SHARE = 0.10
# Copies to the device, for the same reason.
COPY_SHARE = 0.10
# Launch-bound steps of a launch-bound run.
LAUNCH_SHARE = 0.50
# The optimizer's time does not depend on the batch size: from this share a doubled batch gives at least 18 %
# more samples per second, 1 / (1 - 0.3 / 2).
OPTIMIZER_SHARE = 0.30
# Time outside the phases, or gaps explained by neither loader nor launches.
OUTSIDE_SHARE = 0.20
# A phase of a script's own that is named where time is spent outside the others.
OWN_SHARE = 0.05
_MOST_OWN = 5
# Wall time between the steps, for the same reason as data wait.
BETWEEN_SHARE = 0.20
# Forward and backward pass together; below it no phase dominates.
COMPUTE_SHARE = 0.60
_PASSES = (StepPart.FORWARD, StepPart.BACKWARD)
# Ratio of the 99th percentile to the median from which slow steps are mentioned.
TAIL = 2.0


class Bound(StrEnum):
    """Bottleneck of a run."""

    TOO_FEW = "too few steps"
    INPUT = "input-bound"
    TRANSFER = "transfer-bound"
    LAUNCH = "launch-bound"
    OPTIMIZER = "optimizer-heavy"
    OUTSIDE = "outside the phases"
    COMPUTE = "compute-bound"
    MIXED = "mixed"


class Verdict(NamedTuple):
    """Bottleneck, sentence, evidence, and next steps."""

    bound: Bound
    sentence: str
    why: tuple[str, ...]
    next: tuple[str, ...]


_NEXT = {
    Bound.INPUT: (
        "Load data in parallel: loader workers, prefetching, cheaper preprocessing.",
        "Check the data wait in the comparison of settings below.",
    ),
    Bound.TRANSFER: ("Copy from pinned memory without blocking, or send smaller types (bytes, not floats).",),
    Bound.LAUNCH: (
        "Give the device more work per launch: a larger batch, torch.compile, a fused optimizer.",
    ),
    Bound.OPTIMIZER: (
        "A larger batch or gradient accumulation needs fewer optimizer updates per sample; a fused optimizer "
        "is faster.",
    ),
    Bound.OUTSIDE: (
        "Look for work between the phases: metrics read from the device, empty_cache, other code or other "
        "processes.",
    ),
    Bound.COMPUTE: (
        "Everything else within steps takes little time. What remains is faster arithmetic: mixed precision, "
        "TF32, channels_last, torch.compile.",
    ),
    Bound.MIXED: ("No single phase dominates; the table shows the time of each.",),
}
_BETWEEN_NEXT = "Check first what happens between the steps: how often and how long the model is evaluated."


def verdict(timing: Timing, is_asynchronous: bool) -> Verdict:
    """The bottleneck in this range. `is_asynchronous`: the device works asynchronously to the CPU."""
    cpu = timing.cpu
    if cpu is None or timing.examined < MIN_STEPS:
        sentence = f"Too few steps for a verdict: {timing.examined} of {MIN_STEPS} steady-state steps."
        left_out = f"{words.plural(timing.left_out, 'step')} of warm-up or transition left out."
        return Verdict(Bound.TOO_FEW, sentence, (left_out,) if timing.left_out else (), ())
    if is_asynchronous and timing.device is None:
        sentence = "Device times are missing, and issue times alone do not show the bottleneck."
        return Verdict(Bound.TOO_FEW, sentence, (), ())
    bound, sentence, why = _asynchronous(timing) if is_asynchronous else _synchronous(timing)
    between = _between(timing)
    own, own_next = _own_phases(timing, cpu) if bound is Bound.OUTSIDE else ((), ())
    steps = (*own_next, *((_BETWEEN_NEXT,) if between else ()), *_NEXT[bound])
    return Verdict(bound, sentence, (*own, *why, *between, *_tail(timing)), steps)


def _synchronous(timing: Timing) -> tuple[Bound, str, Sequence[str]]:
    cpu = timing.cpu
    assert cpu is not None
    wait, has_optimizer = cpu.share(StepPart.DATA_WAIT), cpu.spread(StepPart.OPTIMIZER) is not None
    optimizer = f", the optimizer {_pct(cpu.share(StepPart.OPTIMIZER))}" if has_optimizer else ""
    shares = f"{_passes(cpu)}{optimizer}."
    if wait >= INPUT_SHARE:
        sentence = f"Input-bound: {_pct(wait)} of the time is spent waiting for the loader."
        return Bound.INPUT, sentence, (_median_wait(timing), shares)
    if cpu.share(StepPart.H2D) >= COPY_SHARE:
        sentence = f"Transfer-bound: {_pct(cpu.share(StepPart.H2D))} of the time is spent copying batches."
        return Bound.TRANSFER, sentence, (shares,)
    others = [] if cpu.spread(StepPart.DATA_WAIT) is None else [f"The loader takes {_pct(wait)}."]
    if cpu.spread(StepPart.COMMUNICATION) is not None:
        share = _pct(cpu.share(StepPart.COMMUNICATION))
        others += [f"Communication with other ranks, and the wait for them, take {share}."]
    return _by_share(cpu, others)


def _asynchronous(timing: Timing) -> tuple[Bound, str, Sequence[str]]:
    cpu, device, launch = timing.cpu, timing.device, timing.launch
    assert cpu is not None
    assert device is not None
    assert launch is not None
    wait, gap, copy = cpu.share(StepPart.DATA_WAIT), device.share(StepPart.GAP), device.share(StepPart.H2D)
    spread = device.spread(StepPart.GAP)
    assert spread is not None
    idle = (
        f"Between two steps the device was idle for a median of at least {words.duration(spread.p50)}, "
        f"{_pct(gap)} of the time."
    )
    issue = (
        f"The CPU issues a step in {words.duration(launch.issue_ns)}, the device executes it in "
        f"{words.duration(launch.device_ns)} (medians)."
    )
    # Between the micro-batches of a step, the device's residual is its wait for the next one.
    starved = gap + device.share(StepPart.RESIDUAL)
    if wait >= INPUT_SHARE and starved >= IDLE_SHARE:
        sentence = (
            f"Input-bound: the loop waits for the loader {_pct(wait)} of the time, and the device is idle "
            f"for at least {_pct(starved)}."
        )
        return Bound.INPUT, sentence, (_median_wait(timing), issue)
    if launch.share >= LAUNCH_SHARE:
        sentence = (
            f"Launch-bound: in {_pct(launch.share)} of the steps the CPU took as long to issue the work as "
            "the device took to execute it."
        )
        return Bound.LAUNCH, sentence, (issue, idle)
    if copy >= COPY_SHARE:
        sentence = f"Transfer-bound: {_pct(copy)} of the device's time is spent copying batches to it."
        return Bound.TRANSFER, sentence, (idle,)
    if gap >= OUTSIDE_SHARE:
        sentence = f"The device is idle between steps for at least {_pct(gap)} of the time."
        waits = f"The loop waits for the loader {_pct(wait)} of the time."
        return Bound.OUTSIDE, sentence, (waits, issue)
    hidden = [f"The data wait of {_pct(wait)} overlaps with work of the device."] if wait > gap else []
    return _by_share(device, [idle, *hidden, issue])


def _by_share(times: ClockTimes, why: list[str]) -> tuple[Bound, str, Sequence[str]]:
    """The verdict by shares where neither loader, copies nor launches are the bottleneck."""
    computing = times.share(StepPart.FORWARD) + times.share(StepPart.BACKWARD)
    optimizer, residual = times.share(StepPart.OPTIMIZER), times.share(StepPart.RESIDUAL)
    if optimizer >= OPTIMIZER_SHARE:
        sentence = f"Optimizer-heavy: {_pct(optimizer)} of the time is spent updating the weights."
        return Bound.OPTIMIZER, sentence, (f"{_passes(times)}.", *why)
    if residual >= OUTSIDE_SHARE:
        sentence = f"{_pct(residual)} of the time is outside the phases."
        return Bound.OUTSIDE, sentence, (f"{_passes(times)}.", *why)
    rest = f"The optimizer takes {_pct(optimizer)}, the time outside the phases is {_pct(residual)}."
    if times.spread(StepPart.OPTIMIZER) is None:
        rest = f"The time outside the phases, updates of the weights included, is {_pct(residual)}."
    if computing >= COMPUTE_SHARE:
        passes = " and ".join(_measured_passes(times))
        sentence = f"Compute-bound: {_pct(computing)} of the time is spent in the {passes} pass."
        return Bound.COMPUTE, sentence, (rest, *why)
    passes = _passes(times)
    return Bound.MIXED, f"No phase dominates: {passes[0].lower()}{passes[1:]}.", (rest, *why)


def _measured_passes(times: ClockTimes) -> list[StepPart]:
    return [part for part in _PASSES if times.spread(part) is not None]


def _passes(times: ClockTimes) -> str:
    measured = _measured_passes(times)
    if not measured:
        return "Forward and backward pass were not measured"
    share = _pct(sum(times.share(part) for part in measured))
    if len(measured) == len(_PASSES):
        return f"Forward and backward pass take {share}"
    (missing,) = set(_PASSES) - set(measured)
    return f"The {measured[0]} pass takes {share} (the {missing} pass was not measured)"


def _median_wait(timing: Timing) -> str:
    assert timing.cpu is not None
    wait = timing.cpu.spread(StepPart.DATA_WAIT)
    assert wait is not None
    return (
        f"Data wait per step: median {words.duration(wait.p50)}, 95th percentile {words.duration(wait.p95)}."
    )


def _own_phases(timing: Timing, cpu: ClockTimes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a script's own phases explain of a step, and what to look at first."""
    shares = {name: own_ns / cpu.step.mean for name, own_ns in timing.own_phases_ns.items()}
    long = [name for name, share in shares.items() if share >= OWN_SHARE][:_MOST_OWN]
    if not long:
        return (), ()
    why = "The script measures by itself: " + ", ".join(f"{name} {_pct(shares[name])}" for name in long) + "."
    return (why,), (f"Look into the script's own phase {long[0]!r} first.",)


def _between(timing: Timing) -> tuple[str, ...]:
    if (
        not timing.wall_ns
        or timing.between_steps_ns is None
        or timing.between_steps_ns < BETWEEN_SHARE * timing.wall_ns
    ):
        return ()
    share = _pct(timing.between_steps_ns / timing.wall_ns)
    return (
        f"These are shares of the steps; {share} of the wall time passes between them: evaluation, pauses "
        "and changes.",
    )


def _tail(timing: Timing) -> tuple[str, ...]:
    step = timing.cpu.step if timing.cpu is not None else None
    if step is None or step.p99 < TAIL * step.p50 or timing.examined < 100:
        return ()
    ratio = words.figure(step.p99 / step.p50, 2)
    return (f"One step in a hundred takes {ratio} times the median and longer; see the slowest below.",)


def _pct(share: float) -> str:
    return words.percent(100 * share)
