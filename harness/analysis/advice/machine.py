"""Rules on the machine: clocks held back, other processes on the GPU, and steps that differ widely."""

import statistics

from harness import words
from harness.analysis.advice.host import find_busy_host, find_threads
from harness.analysis.advice.known import Known
from harness.analysis.advice.memory import find_emptying, find_retries
from harness.analysis.advice.suggestion import Finding, Gain, Option, Rule, at_most, pct
from harness.analysis.effect import PRACTICAL
from harness.analysis.machine.throttle import SEVERE, WORDS, Held, held
from harness.analysis.timing.phases import Part
from harness.analysis.timing.verdict import Bound
from harness.records import StepRow
from harness.telemetry_records import ThrottleReason

# Of the time. Heat and power supply slow a healthy machine never; a moment in which a counter moves is let
# pass.
SEVERE_SHARE = 0.02
# Of the time at the power limit: a GPU that is busy touches it now and then, as intended.
POWER_SHARE = 0.50
# Counters are read once a second: over less than ten seconds a share of time says little.
LEAST_RANGE_NS = 10_000_000_000
# What slow steps take beyond the median, as a share of all time: as much as a phase must be worth.
UNSTEADY_SHARE = 0.10
# A step that takes so many times the median is slow.
SLOW = 1.5
LEAST_STEPS = 100
_PARTS = {
    Part.DATA_WAIT: "data_wait_ns",
    Part.H2D: "h2d_ns",
    Part.FORWARD: "forward_ns",
    Part.BACKWARD: "backward_ns",
    Part.OPTIMIZER: "optimizer_ns",
}

_NAMES = {Part.DATA_WAIT: "data wait", Part.H2D: "copy", Part.RESIDUAL: "what lies in no phase"}


def find_heat(known: Known) -> Finding | None:
    """Clocks held back for at least 2 % of the time by heat, hardware or the power supply (NVML's counters of
    violation time). What can be won is the clock's distance to the highest it had in this run,
    which must be 1 % at least where it is known."""
    return _throttled(known, [one for one in _held(known) if one.reason & SEVERE], SEVERE_SHARE)


def find_power(known: Known) -> Finding | None:
    """Clocks held back by the power limit for at least half of the time; bounded as heat is."""
    return _throttled(
        known, [one for one in _held(known) if one.reason is ThrottleReason.POWER_CAP], POWER_SHARE
    )


def _held(known: Known) -> list[Held]:
    return held(None, known.details)


def _throttled(known: Known, reasons: list[Held], least: float) -> Finding | None:
    span_ns = known.details[-1].t_ns - known.details[0].t_ns if known.details else 0
    if span_ns < LEAST_RANGE_NS or not known.settled:
        return None
    strong = [(one, (one.recent_ns or 0) / span_ns) for one in reasons]
    strong = [(one, share) for one, share in strong if share >= least]
    if not strong:
        return None
    clocks = known.clocks
    gain = Gain(None, "higher clocks; how much that wins cannot be told")
    details = [(WORDS[one.reason], f"{pct(share)} of the time") for one, share in strong]
    if clocks is not None:
        lost = 1 - clocks.mean_mhz / clocks.highest_mhz
        if lost < PRACTICAL:
            return None
        gain = at_most(lost)
        details.append(("clock, mean", f"{words.count(clocks.mean_mhz)} MHz"))
        details.append(("clock, highest in this run", f"{words.count(clocks.highest_mhz)} MHz"))
    worst, share = max(strong, key=lambda pair: pair[1])
    return Finding(
        gain,
        f"For {pct(share)} of the last {words.duration(span_ns)} the GPU held its clocks back, "
        f"{WORDS[worst.reason]}.",
        details,
        "Every kernel takes longer by as much as the clock is lower; no setting of the run changes that.",
        by_hand="Look at cooling and neighbours; `nvidia-smi -q -d PERFORMANCE,POWER` tells the limits, "
        "and whoever runs the machine can raise the power limit.",
    )


def find_others(known: Known) -> Finding | None:
    """At least one process beside the training that NVML says holds memory of the same GPU."""
    others = [row for row in known.processes if row.is_own == 0]
    if not known.is_gpu or not others:
        return None
    sizes = [row.memory_bytes for row in others if row.memory_bytes is not None]
    taken = sum(sizes) if sizes else None
    named = ", ".join(f"{row.name or 'a process'} ({row.pid})" for row in others[:3])
    gain = f"up to {words.size(taken)} of memory" if taken else "a GPU of one's own"
    return Finding(
        Gain(None, f"{gain}; how much time it costs cannot be told"),
        f"Beside the training there {'is' if len(others) == 1 else 'are'} on this GPU: {named}.",
        [(f"{row.name or 'a process'} ({row.pid})", words.size(row.memory_bytes)) for row in others[:10]],
        "Two programs take turns on a GPU: step times are not this run's own, and neither is its memory.",
        by_hand="End it, or train on another device.",
    )


def find_unsteady(known: Known) -> Finding | None:
    """What steps of more than 1.5 times the median take beyond it is at least 10 % of all time, over at least
    100 steps in which Stepscope did not sample memory; a cache that is emptied, retries, a slow loader and a
    CPU that others use, or too many threads do, have rules of their own."""
    rows = _unsampled(known)
    if len(rows) < LEAST_STEPS or known.bound is Bound.INPUT:
        return None
    if any(find(known) is not None for find in (find_emptying, find_retries, find_busy_host, find_threads)):
        return None
    usual = statistics.median(row.step_ns for row in rows)
    slow = [row for row in rows if row.step_ns > SLOW * usual]
    share = sum(row.step_ns - usual for row in slow) / sum(row.step_ns for row in rows)
    if share < UNSTEADY_SHARE:
        return None
    excess = _excess(rows, slow)
    part = max(excess, key=lambda name: excess[name])
    settings = known.settings
    options = []
    if part is Part.DATA_WAIT and settings.data != "synthetic":
        if settings.num_workers:
            options.append(Option({"prefetch_factor": min(16, 2 * settings.prefetch_factor)}, at_most(share)))
        else:
            options.append(Option({"num_workers": 2}, at_most(share)))
    name = _NAMES.get(part, part.value)
    worst = max(slow, key=lambda row: row.step_ns)
    return Finding(
        at_most(share),
        f"{words.plural(len(slow), 'step')} of {words.count(len(rows))} take more than {words.figure(SLOW)} "
        f"times the median of {words.duration(usual)}; what they take beyond it is {pct(share)} of the time.",
        [
            ("median step", words.duration(usual)),
            ("slow steps", f"{words.count(len(slow))} of {words.count(len(rows))}"),
            ("slowest", f"{words.duration(worst.step_ns)}, step {words.count(worst.step)}"),
            ("stands out in them", f"{name}, {words.duration(excess[part])} longer in the mean"),
        ],
        f"If every step took as long as the median, that time would be won. In the slow steps {name} stands "
        "out.",
        options,
        "Look at the slowest steps below and at what happened then: other programs, garbage collection, "
        "writing of checkpoints, inputs of very different length.",
    )


def _unsampled(known: Known) -> list[StepRow]:
    """The settled steps without those in which memory was sampled; all of them where most were: steps of a
    second and more are not made half as long again by a sample."""
    rows = known.settled
    unsampled = [row for row in rows if row.step not in known.sampled_steps]
    return unsampled if len(unsampled) >= len(rows) / 2 else rows


def _excess(rows: list[StepRow], slow: list[StepRow]) -> dict[Part, float]:
    """By how much each phase is longer in the slow steps, in the mean, than in the median of all."""
    found = {}
    rest = [float(row.step_ns) for row in slow]
    rest_usual = [float(row.step_ns) for row in rows]
    for part, column in _PARTS.items():
        values = [float(getattr(row, column)) for row in slow]
        usual = [float(getattr(row, column)) for row in rows]
        found[part] = statistics.fmean(values) - statistics.median(usual)
        rest = [left - value for left, value in zip(rest, values, strict=True)]
        rest_usual = [left - value for left, value in zip(rest_usual, usual, strict=True)]
    found[Part.RESIDUAL] = statistics.fmean(rest) - statistics.median(rest_usual)
    return found


RULES = (
    Rule(
        "heat",
        "Cool the GPU",
        f"clocks held back by heat, hardware or power supply for at least {pct(SEVERE_SHARE)} of at least "
        f"{words.duration(LEAST_RANGE_NS)}",
        "NVML, violation time: a healthy machine has none",
        "NVML's cumulative counters, and the clock",
        "none",
        find_heat,
    ),
    Rule(
        "power-limit",
        "Raise the GPU's power limit",
        f"clocks held back by the power limit for at least {pct(POWER_SHARE)} of the time",
        "NVML, violation time: a busy GPU touches its limit now and then",
        "NVML's cumulative counters, and the clock",
        "none",
        find_power,
    ),
    Rule(
        "other-processes",
        "Have the GPU to yourself",
        "a process beside the training on the same GPU",
        "NVML's list of processes",
        "processes and the memory they hold",
        "none",
        find_others,
    ),
    Rule(
        "unsteady",
        "Make the steps alike",
        f"slow steps (over {words.figure(SLOW)} times the median) take at least {pct(UNSTEADY_SHARE)} of "
        f"the time beyond it, over at least {LEAST_STEPS} steps",
        "as much as a phase must be worth on the Profiler page",
        "step times and their phases",
        "`num_workers` or `prefetch_factor`, where the data wait stands out",
        find_unsteady,
    ),
)
