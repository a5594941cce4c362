"""Rules on the input pipeline: data loading, host-to-device copies, kernel launches."""

import math

from harness import words
from harness.analysis.advice.code import code_for
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.host import find_busy_host
from harness.analysis.advice.suggestion import Diagnosis, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import Spread, StepPart
from harness.analysis.timing.verdict import COPY_SHARE, IDLE_SHARE, INPUT_SHARE, LAUNCH_SHARE, Bound
from harness.records.memory import LeakRow
from harness.records.run import DeviceKind

# Upper limit of proposed loader workers where the number of cores is unknown. Each worker is a process with
# its own copy of the data set object.
MAX_WORKERS = 16
# A median wait below this share of the mean wait means bursts: most batches are ready in time and a few are
# late together, which a longer prefetch queue can bridge.
BURST_RATIO = 0.1
MAX_PREFETCH = 16
# The workers to begin with in a script with an unknown number of them.
_FIRST_WORKERS = 4
# Where other programs have the processors.
_UNKNOWN_GAIN = Gain(None, "a shorter wait; the time saved cannot be estimated")
_WITH_WORKERS = "Shorten the wait for the loader"
# From this share of the issue time a fused optimizer is proposed first; it can save at most that share.
OPTIMIZER_ISSUE_SHARE = 0.2


def find_input_bound(run: RunEvidence) -> Diagnosis | None:
    """Input-bound by the thresholds of `harness.analysis.timing.verdict`: at least 20 % of the loop is data
    wait and, on a GPU, the device is idle between steps for at least 10 % of the time. The time saved is at
    most the data wait, and on a GPU at most that idle time. No workers are added while those of the run leak
    memory. While other programs use the processors of a run on the CPU (rule `busy-host`), no gain is stated.
    """
    cpu, device = run.timing.cpu, run.timing.device
    if run.bound is not Bound.INPUT or cpu is None or run.value("data") == "synthetic":
        return None
    wait, step = _spread(cpu.spread(StepPart.DATA_WAIT)), cpu.step
    share = cpu.share(StepPart.DATA_WAIT)
    saved = share if device is None else min(share, device.share(StepPart.GAP))
    workers = run.value("num_workers")
    loading_ns, computing_ns = _estimate(run, workers or 0)
    details = [
        ("data wait", f"{pct(share)} of the time"),
        ("data wait, p50 / p95", f"{words.duration(wait.p50)} / {words.duration(wait.p95)}"),
        ("step without data wait, mean", words.duration(computing_ns)),
    ]
    if workers is not None:
        loading = f"{words.duration(loading_ns)} in one process"
        details.append(("loading one step's batches, estimated", loading))
    details.append(("loader workers", words.count(workers)))
    if device is not None:
        details.append(("device idle between steps", f"at least {pct(device.share(StepPart.GAP))}"))
    is_busy, leak = find_busy_host(run) is not None, run.workers_leak
    can_add = leak is None
    options = [] if workers is None else _loader_options(run, wait, step.mean, saved)
    if is_busy:
        options = [option._replace(gain=_UNKNOWN_GAIN) for option in options]
    if leak is not None:
        details.append(("growth of the workers' memory", f"{words.size(leak.bytes_per_step)} per step"))
    return Diagnosis(
        _UNKNOWN_GAIN if is_busy else at_most(saved),
        f"{pct(share)} of the time is spent waiting for the loader, on average {words.duration(wait.mean)} "
        f"of a {words.duration(step.mean)} step"
        + ("." if workers is None else f", with {words.plural(workers, 'loader worker')}."),
        details,
        "Loader workers prepare batches while the model trains, so a batch is ready when the step starts. "
        "The data wait is the most that can be saved; the estimate assumes that workers do not slow each "
        "other down.",
        options if can_add else [option for option in options if "num_workers" not in option.change],
        _before_workers(leak, is_busy)
        + (
            "Use more loader workers, as long as the data wait shrinks. "
            if workers is None and can_add
            else ""
        )
        + "Do less work per sample: decode and resize once, keep the data on a fast disk, move per-batch "
        "transforms to the device.",
        _more_workers(run) if workers is None and can_add else "",
        # One that has workers, or may have them, does load its data in worker processes.
        "" if workers == 0 and can_add else _WITH_WORKERS,
    )


def _before_workers(leak: LeakRow | None, is_busy: bool) -> str:
    """Return what to know before workers are added, in sentences with a space after each."""
    text = ""
    if leak is not None:
        text += (
            "Do not add workers while those of this run leak: their memory has grown by "
            f"{words.size(leak.bytes_per_step)} per step since step {words.count(leak.since_step)}, and each "
            "further one would keep samples too. First find what the data set keeps. "
        )
    if is_busy:
        text += (
            "While other programs use the processors, workers that compute wait for a core and bring little; "
            "those that wait for a disk or the network still help. "
        )
    return text


def _more_workers(run: RunEvidence) -> str:
    workers = min(_FIRST_WORKERS, _most_workers(run))
    return code_for({"num_workers": workers} | ({"pin_memory": True} if run.device.can_pin else {}))


def _most_workers(run: RunEvidence) -> int:
    """Return the most loader workers to propose: one per core; torch warns about more."""
    cores = run.device.multiprocessors if run.device.kind is DeviceKind.CPU else run.usable_cores
    return MAX_WORKERS if cores is None else max(2, min(MAX_WORKERS, cores))


def _estimate(run: RunEvidence, workers: int) -> tuple[float, float]:
    """Estimate, in ns, the time one process takes to load one step's batches, and the time of a step that
    never waits for them. A GPU keeps working while the loop waits, so its own time is a lower bound."""
    cpu, device = run.timing.cpu, run.timing.device
    assert cpu is not None
    wait, step_ns = _spread(cpu.spread(StepPart.DATA_WAIT)), cpu.step.mean
    computing_ns = max(step_ns - wait.mean, 0.0 if device is None else device.step.mean, 1.0)
    return (workers * step_ns if workers else wait.mean), computing_ns


def _loader_options(run: RunEvidence, wait: Spread, step_ns: float, saved: float) -> list[Option]:
    workers, prefetch = run.settings.num_workers, run.settings.prefetch_factor
    options = []
    if workers and wait.p50 < BURST_RATIO * wait.mean and prefetch < MAX_PREFETCH:
        options.append(Option({"prefetch_factor": 2 * prefetch}, at_most(saved)))
    loading_ns, computing_ns = _estimate(run, workers)
    proposed = min(_most_workers(run), max(workers + 1, math.ceil(loading_ns / computing_ns)))
    if proposed > workers:
        remaining_ns = max(computing_ns, loading_ns / proposed)
        change = {"num_workers": proposed} | ({"pin_memory": True} if run.device.can_pin else {})
        options.append(Option(change, at_most(min(saved, 1 - remaining_ns / step_ns))))
    return options


def find_transfer_bound(run: RunEvidence) -> Diagnosis | None:
    """Copies take at least 10 % of the device's time (`harness.analysis.timing.verdict.COPY_SHARE`): without
    them the run would be at most 1.11 times as fast. Copies from pinned memory can overlap with computation
    (CUDA C++ Best Practices Guide, "Pinned Memory")."""
    device = run.timing.device
    if run.bound is Bound.TOO_FEW or device is None or device.share(StepPart.H2D) < COPY_SHARE:
        return None
    share, copy = device.share(StepPart.H2D), _spread(device.spread(StepPart.H2D))
    return Diagnosis(
        at_most(share),
        f"{pct(share)} of the device's time is spent copying batches to it, a median of "
        f"{words.duration(copy.p50)} per step.",
        [
            ("copies", f"{pct(share)} of the device's time"),
            ("copies per step, p50 / p95", f"{words.duration(copy.p50)} / {words.duration(copy.p95)}"),
            ("pinned memory", _on(run.value("pin_memory"))),
            ("non-blocking copies", _on(run.value("non_blocking"))),
            *_synchronous_copies(run),
        ],
        "Copies from pinned memory are faster, and with non_blocking the CPU keeps issuing work meanwhile.",
        [Option({"pin_memory": True, "non_blocking": True}, at_most(share))],
        "Send smaller types: images as bytes, converted and normalized on the device.",
    )


def find_launch_bound(run: RunEvidence) -> Diagnosis | None:
    """At least half of the steps are launch-bound (`harness.analysis.timing.phases`): the CPU takes as long
    to issue the work as the device takes to execute it. With a doubled batch the same launches serve twice
    the samples, so at most half of the time per sample can be saved."""
    launch, cpu, device = run.timing.launch, run.timing.cpu, run.timing.device
    if run.bound is not Bound.LAUNCH or launch is None or cpu is None or device is None:
        return None
    optimizer = cpu.share(StepPart.OPTIMIZER)
    issued = sum(
        cpu.share(part) for part in (StepPart.H2D, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER)
    )
    fused = Option({"optimizer_impl": "fused"}, at_most(optimizer))
    compiled = Gain(issued, f"at most {pct(issued)}, the share of the time in which the CPU issues work")
    options = [fused] if optimizer >= OPTIMIZER_ISSUE_SHARE * issued else []
    options.append(Option({"compile": True}, compiled))
    if (batch := run.value("batch_size")) is not None:
        options.append(Option({"batch_size": 2 * batch}, at_most(launch.share / 2)))
    return Diagnosis(
        at_most(launch.share / 2),
        f"In {pct(launch.share)} of {words.plural(launch.steps, 'step')} the CPU took as long to issue the "
        f"work (median {words.duration(launch.issue_ns)}) as the device took to execute it "
        f"({words.duration(launch.device_ns)}).",
        [
            ("launch-bound steps", f"{words.count(launch.bound_steps)} of {words.count(launch.steps)}"),
            ("issue time per step, median", words.duration(launch.issue_ns)),
            ("device time per step, median", words.duration(launch.device_ns)),
            ("issue time of the optimizer", f"{pct(optimizer)} of the time"),
            ("device idle between steps", f"at least {pct(device.share(StepPart.GAP))}"),
        ],
        "Small kernels finish before the next one is launched. Fewer and larger kernels keep the device "
        "busy: a fused optimizer, a compiled model, a larger batch (which also changes convergence per "
        "step).",
        options,
        "Capture the step in a CUDA graph; check a profile for many tiny kernels.",
    )


def _spread(spread: Spread | None) -> Spread:
    assert spread is not None
    return spread


def _synchronous_copies(run: RunEvidence) -> list[tuple[str, str]]:
    """The copies reported by torch's sync debug mode."""
    if run.inspection is None:
        return []
    steps = run.inspection.steps
    return [
        (line.place, f"synchronous, {words.figure(line.calls / steps, 2)} per step")
        for line in run.inspection.copies
    ]


def _on(value: bool | None) -> str:
    return words.NOT_AVAILABLE if value is None else "on" if value else "off"


RULES = (
    Rule(
        "input-bound",
        "Load data in worker processes",
        f"data wait of at least {pct(INPUT_SHARE)} of the time; on a GPU also idle time between steps of at "
        f"least {pct(IDLE_SHARE)}",
        "the Profiler page's verdict: without data wait a run is at most 1.25 times as fast",
        "data wait and, on a GPU, the device's idle time between steps",
        "`num_workers` (with `pin_memory` on a GPU), `prefetch_factor` where waits come in bursts",
        find_input_bound,
    ),
    Rule(
        "transfer-bound",
        "Use pinned memory and asynchronous copies",
        f"copies take at least {pct(COPY_SHARE)} of the device's time",
        'without them a run is at most 1.11 times as fast; CUDA C++ Best Practices Guide, "Pinned Memory"',
        "the copies on the device's clock",
        "`pin_memory`, `non_blocking`",
        find_transfer_bound,
    ),
    Rule(
        "launch-bound",
        "Give the device more work per launch",
        f"in at least {pct(LAUNCH_SHARE)} of the steps the CPU takes as long to issue the work as the device "
        "to execute it",
        "the Profiler page's verdict; PyTorch Performance Tuning Guide on fused operations",
        "issue time, device time and idle time of each step",
        "`optimizer_impl=fused`, then `compile`, then twice the `batch_size`",
        find_launch_bound,
    ),
)
