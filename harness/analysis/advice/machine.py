"""Rules on the machine: throttling, other processes on the GPU, and uneven step times."""

import statistics

from harness import words
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.host import find_busy_host, find_threads, is_load_unknown
from harness.analysis.advice.memory import find_empty_cache, find_retries
from harness.analysis.advice.suggestion import Diagnosis, Gain, Option, Rule, at_most, pct
from harness.analysis.effect import PRACTICAL
from harness.analysis.machine.throttle import SEVERE, THROTTLE_TEXTS, ThrottleTime, throttle_times
from harness.analysis.timing.phases import StepPart, part_label
from harness.analysis.timing.verdict import Bound
from harness.records.run import StepRow
from harness.records.telemetry import ThrottleReason

# Share of the time. Heat and the power supply never throttle a healthy machine; 2 % tolerates a single count.
SEVERE_SHARE = 0.02
# Share of the time at the power limit, which a busy GPU reaches now and then by design.
POWER_SHARE = 0.50
# Counters are read once per second; a share over less than ten seconds is too coarse.
MIN_RANGE_NS = 10_000_000_000
# Time of slow steps beyond the median, as a share of all time: the share from which a phase is worth a
# change.
UNEVEN_SHARE = 0.10
# A step is slow from this multiple of the median.
SLOW = 1.5
MIN_STEPS = 100
_PARTS = {
    StepPart.DATA_WAIT: "data_wait_ns",
    StepPart.H2D: "h2d_ns",
    StepPart.FORWARD: "forward_ns",
    StepPart.BACKWARD: "backward_ns",
    StepPart.OPTIMIZER: "optimizer_ns",
}


def find_heat(run: RunEvidence) -> Diagnosis | None:
    """Throttled for at least 2 % of the time by heat, hardware or the power supply (NVML's violation time
    counters). The gain is at most the distance of the clock to its highest value in this run, which must be
    at least 1 % where it is known."""
    return _throttled(run, [entry for entry in _times(run) if entry.reason & SEVERE], SEVERE_SHARE)


def find_power(run: RunEvidence) -> Diagnosis | None:
    """Throttled by the power limit for at least half of the time; the gain is bounded as for heat."""
    entries = [entry for entry in _times(run) if entry.reason is ThrottleReason.POWER_CAP]
    return _throttled(run, entries, POWER_SHARE)


def _times(run: RunEvidence) -> list[ThrottleTime]:
    return throttle_times(None, run.details)


def _throttled(run: RunEvidence, entries: list[ThrottleTime], min_share: float) -> Diagnosis | None:
    span_ns = run.details[-1].t_ns - run.details[0].t_ns if run.details else 0
    if span_ns < MIN_RANGE_NS or not run.settled:
        return None
    shares = [(entry, (entry.recent_ns or 0) / span_ns) for entry in entries]
    shares = [(entry, share) for entry, share in shares if share >= min_share]
    if not shares:
        return None
    clocks = run.clocks
    gain = Gain(None, "higher clocks; the time saved cannot be estimated")
    details = [(THROTTLE_TEXTS[entry.reason], f"{pct(share)} of the time") for entry, share in shares]
    if clocks is not None:
        lost = 1 - clocks.mean_mhz / clocks.highest_mhz
        if lost < PRACTICAL:
            return None
        gain = at_most(lost)
        details.append(("SM clock, mean", f"{words.count(clocks.mean_mhz)} MHz"))
        details.append(("SM clock, highest in this run", f"{words.count(clocks.highest_mhz)} MHz"))
    worst, share = max(shares, key=lambda pair: pair[1])
    return Diagnosis(
        gain,
        f"For {pct(share)} of the last {words.duration(span_ns)} the GPU was throttled: "
        f"{THROTTLE_TEXTS[worst.reason]}.",
        details,
        "Every kernel slows down with the clock; no setting of the run changes that.",
        by_hand="Check the cooling and neighboring devices; `nvidia-smi -q -d PERFORMANCE,POWER` shows the "
        "limits, and the machine's administrator can raise the power limit.",
    )


def find_other_processes(run: RunEvidence) -> Diagnosis | None:
    """At least one other process with memory on the same GPU, as listed by NVML."""
    others = [row for row in run.processes if row.is_own == 0]
    if not run.is_gpu or not others:
        return None
    sizes = [row.memory_bytes for row in others if row.memory_bytes is not None]
    used_bytes = sum(sizes) if sizes else None
    names = ", ".join(f"{row.name or 'a process'} ({row.pid})" for row in others[:3])
    gain = f"up to {words.size(used_bytes)} of memory" if used_bytes else "exclusive use of the GPU"
    return Diagnosis(
        Gain(None, f"{gain}; the time saved cannot be estimated"),
        f"{'Another process uses' if len(others) == 1 else 'Other processes use'} this GPU: {names}.",
        [(f"{row.name or 'a process'} ({row.pid})", words.size(row.memory_bytes)) for row in others[:10]],
        "Processes on one GPU take turns: step times include the other's work, and its memory is shared.",
        by_hand="Stop the other process, or train on another device.",
    )


def find_uneven_steps(run: RunEvidence) -> Diagnosis | None:
    """Steps longer than 1.5 times the median spend at least 10 % of all time beyond it, over at least 100
    steps without a memory sample. empty_cache, retries, data wait, other load on the CPU and too many threads
    have rules of their own; on the CPU there is no advice until the other load is known."""
    rows = _unsampled(run)
    if len(rows) < MIN_STEPS or run.bound is Bound.INPUT or is_load_unknown(run):
        return None
    if any(find(run) is not None for find in (find_empty_cache, find_retries, find_busy_host, find_threads)):
        return None
    median_ns = statistics.median(row.step_ns for row in rows)
    slow = [row for row in rows if row.step_ns > SLOW * median_ns]
    share = sum(row.step_ns - median_ns for row in slow) / sum(row.step_ns for row in rows)
    if share < UNEVEN_SHARE:
        return None
    excess = _excess(rows, slow)
    part = max(excess, key=lambda name: excess[name])
    options = []
    if part is StepPart.DATA_WAIT and run.value("data") != "synthetic":
        if run.value("num_workers"):
            prefetch = min(16, 2 * run.settings.prefetch_factor)
            options.append(Option({"prefetch_factor": prefetch}, at_most(share)))
        elif run.value("num_workers") is not None:
            options.append(Option({"num_workers": 2}, at_most(share)))
    name = "the time outside the phases" if part is StepPart.RESIDUAL else part_label(part)
    worst = max(slow, key=lambda row: row.step_ns)
    return Diagnosis(
        at_most(share),
        f"{words.plural(len(slow), 'step')} of {words.count(len(rows))} take more than {words.figure(SLOW)} "
        f"times the median of {words.duration(median_ns)}; their time beyond it is {pct(share)} of all time.",
        [
            ("median step", words.duration(median_ns)),
            ("slow steps", f"{words.count(len(slow))} of {words.count(len(rows))}"),
            ("slowest step", f"{words.duration(worst.step_ns)}, step {words.count(worst.step)}"),
            ("largest excess", f"{name}, {words.duration(excess[part])} longer on average"),
        ],
        f"This is the time saved if every step took as long as the median. In the slow steps, {name} exceeds "
        "its median the most.",
        options,
        "Check what happened in the slowest steps: other programs, garbage collection, checkpoint writes, "
        "inputs of very different length.",
    )


def _unsampled(run: RunEvidence) -> list[StepRow]:
    """The steady-state steps without a memory sample; all of them where most have one, since a sample adds
    little to steps of a second and more."""
    rows = run.settled
    unsampled = [row for row in rows if row.step not in run.sampled_steps]
    return unsampled if len(unsampled) >= len(rows) / 2 else rows


def _excess(rows: list[StepRow], slow: list[StepRow]) -> dict[StepPart, float]:
    """Mean of each phase over the slow steps, less its median over all steps, in ns."""
    excess = {}
    residual = [float(row.step_ns) for row in slow]
    all_residual = [float(row.step_ns) for row in rows]
    for part, column in _PARTS.items():
        slow_values = [float(getattr(row, column)) for row in slow]
        values = [float(getattr(row, column)) for row in rows]
        excess[part] = statistics.fmean(slow_values) - statistics.median(values)
        residual = [rest - value for rest, value in zip(residual, slow_values, strict=True)]
        all_residual = [rest - value for rest, value in zip(all_residual, values, strict=True)]
    excess[StepPart.RESIDUAL] = statistics.fmean(residual) - statistics.median(all_residual)
    return excess


RULES = (
    Rule(
        "heat",
        "Cool the GPU",
        f"throttled by heat, hardware or the power supply for at least {pct(SEVERE_SHARE)} of at least "
        f"{words.duration(MIN_RANGE_NS)}",
        "NVML, violation time: a healthy machine has none",
        "NVML's cumulative counters, and the SM clock",
        "none",
        find_heat,
    ),
    Rule(
        "power-limit",
        "Raise the GPU's power limit",
        f"throttled by the power limit for at least {pct(POWER_SHARE)} of the time",
        "NVML, violation time: a busy GPU reaches its limit now and then",
        "NVML's cumulative counters, and the SM clock",
        "none",
        find_power,
    ),
    Rule(
        "other-processes",
        "Use the GPU exclusively",
        "another process on the same GPU",
        "NVML's list of processes",
        "processes and their memory",
        "none",
        find_other_processes,
    ),
    Rule(
        "unsteady",
        "Make step times even",
        f"slow steps (over {words.figure(SLOW)} times the median) spend at least {pct(UNEVEN_SHARE)} of "
        f"all time beyond it, over at least {MIN_STEPS} steps",
        "the share from which a phase is worth a change on the Profiler page",
        "step times and their phases",
        "`num_workers` or `prefetch_factor`, where the data wait has the largest excess",
        find_uneven_steps,
    ),
)
