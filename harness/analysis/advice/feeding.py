"""Rules on what feeds the device: the loader, the copies, the launches."""

import math

from harness import words
from harness.analysis.advice.known import Known
from harness.analysis.advice.suggestion import Finding, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import Part, Spread
from harness.analysis.timing.verdict import COPY_SHARE, IDLE_SHARE, INPUT_SHARE, LAUNCH_SHARE, Bound
from harness.records import DeviceKind

# Loader workers proposed at most where the machine's cores are not known; each is a process with its own copy
# of what the data set holds.
MOST_WORKERS = 16
# A median wait below this share of the mean one: most batches are there in time, some come late together,
# which more batches made ahead can bridge.
BURSTS = 0.1
MOST_PREFETCH = 16
# Share of the issue time from which on a fused optimizer is tried first: it can win at most that.
OPTIMIZER_ISSUE_SHARE = 0.2


def find_input_bound(known: Known) -> Finding | None:
    """Input-bound as `harness.analysis.timing.verdict` says it: at least 20 % of the loop waits for the
    loader and, on a GPU, at least 10 % of the time is a gap. What can be won is the wait, on a GPU no more
    than the gap.
    """
    cpu, device = known.timing.cpu, known.timing.device
    if known.bound is not Bound.INPUT or cpu is None or known.settings.data == "synthetic":
        return None
    wait, step = _spread(cpu.spread(Part.DATA_WAIT)), cpu.step
    share = cpu.share(Part.DATA_WAIT)
    won = share if device is None else min(share, device.share(Part.GAP))
    workers = known.settings.num_workers
    loading_ns, computing_ns = _estimate(known)
    details = [
        ("waiting for the loader", f"{pct(share)} of the time"),
        ("wait, p50 / p95", f"{words.duration(wait.p50)} / {words.duration(wait.p95)}"),
        ("a step without that wait, mean", words.duration(computing_ns)),
        ("making a step's batches, estimated", f"{words.duration(loading_ns)} in one process"),
        ("loader workers", words.count(workers)),
    ]
    if device is not None:
        details.append(("device idle between steps", f"at least {pct(device.share(Part.GAP))}"))
    return Finding(
        at_most(won),
        f"{pct(share)} of the time goes by waiting for the loader, {words.duration(wait.mean)} of "
        f"{words.duration(step.mean)} a step in the mean, with {words.plural(workers, 'loader worker')}.",
        details,
        "Batches that are made beside the training are there when a step begins. The wait is the most that "
        "can be won; the estimate supposes that workers do not get in one another's way.",
        _loader_options(known, wait, step.mean, won),
        "Do less for each sample: decode and resize once, keep the data on a fast disk, move what can be "
        "done for a whole batch to the device.",
    )


def _estimate(known: Known) -> tuple[float, float]:
    """How long one process takes to make a step's batches, and a step that need not wait for them, in ns: a
    GPU goes on working while the loop waits, so that its own time is the least."""
    cpu, device = known.timing.cpu, known.timing.device
    assert cpu is not None
    wait, step_ns, workers = _spread(cpu.spread(Part.DATA_WAIT)), cpu.step.mean, known.settings.num_workers
    computing_ns = max(step_ns - wait.mean, 0.0 if device is None else device.step.mean, 1.0)
    return (workers * step_ns if workers else wait.mean), computing_ns


def _loader_options(known: Known, wait: Spread, step_ns: float, won: float) -> list[Option]:
    workers, prefetch = known.settings.num_workers, known.settings.prefetch_factor
    options = []
    if workers and wait.p50 < BURSTS * wait.mean and prefetch < MOST_PREFETCH:
        options.append(Option({"prefetch_factor": 2 * prefetch}, at_most(won)))
    loading_ns, computing_ns = _estimate(known)
    cores = known.device.multiprocessors if known.device.kind is DeviceKind.CPU else None
    most = MOST_WORKERS if cores is None else max(2, min(MOST_WORKERS, cores))
    wanted = min(most, max(workers + 1, math.ceil(loading_ns / computing_ns)))
    if wanted > workers:
        left_ns = max(computing_ns, loading_ns / wanted)
        change = {"num_workers": wanted} | ({"pin_memory": True} if known.device.can_pin else {})
        options.append(Option(change, at_most(min(won, 1 - left_ns / step_ns))))
    return options


def find_transfer_bound(known: Known) -> Finding | None:
    """Copies take at least 10 % of the device's time, `harness.analysis.timing.verdict.COPY_SHARE`: without
    them the run would be at most 1.11 times as fast. Pinned memory lets a copy run beside the computing (CUDA
    C++ Best Practices Guide, "Pinned Memory")."""
    device = known.timing.device
    if known.bound is Bound.TOO_FEW or device is None or device.share(Part.H2D) < COPY_SHARE:
        return None
    share, copy = device.share(Part.H2D), _spread(device.spread(Part.H2D))
    return Finding(
        at_most(share),
        f"{pct(share)} of the device's time goes into copying batches to it, {words.duration(copy.p50)} a "
        "step in the median.",
        [
            ("copying", f"{pct(share)} of the device's time"),
            ("a step's copies, p50 / p95", f"{words.duration(copy.p50)} / {words.duration(copy.p95)}"),
            ("pinned memory", _on(known.settings.pin_memory)),
            ("non-blocking copies", _on(known.settings.non_blocking)),
            *_waiting_copies(known),
        ],
        "From pinned memory a copy is faster, and with non_blocking the CPU goes on issuing meanwhile.",
        [Option({"pin_memory": True, "non_blocking": True}, at_most(share))],
        "Send smaller types: images as bytes, converted and normalised on the device.",
    )


def find_launch_bound(known: Known) -> Finding | None:
    """At least half of the steps are launch-bound (`harness.analysis.timing.phases`): the CPU takes as long
    to issue the work as the device to do it. A doubled batch lets the same launches serve twice the samples,
    so at most half of a sample's time can be won."""
    launch, cpu, device = known.timing.launch, known.timing.cpu, known.timing.device
    if known.bound is not Bound.LAUNCH or launch is None or cpu is None or device is None:
        return None
    optimizer = cpu.share(Part.OPTIMIZER)
    issued = sum(cpu.share(part) for part in (Part.H2D, Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER))
    settings = known.settings
    fused = Option({"optimizer_impl": "fused"}, at_most(optimizer))
    compiled = Gain(issued, f"at most {pct(issued)}, the share of the time in which the CPU issues work")
    options = [fused] if optimizer >= OPTIMIZER_ISSUE_SHARE * issued else []
    options += [
        Option({"compile": True}, compiled),
        Option({"batch_size": 2 * settings.batch_size}, at_most(launch.share / 2)),
    ]
    return Finding(
        at_most(launch.share / 2),
        f"In {pct(launch.share)} of {words.plural(launch.steps, 'step')} the CPU took as long to issue the "
        f"work ({words.duration(launch.issue_ns)} in the median) as the device to do it "
        f"({words.duration(launch.device_ns)}).",
        [
            ("launch-bound steps", f"{words.count(launch.bound_steps)} of {words.count(launch.steps)}"),
            ("issuing a step, median", words.duration(launch.issue_ns)),
            ("the device's step, median", words.duration(launch.device_ns)),
            ("issuing the optimizer", f"{pct(optimizer)} of the time"),
            ("device idle between steps", f"at least {pct(device.share(Part.GAP))}"),
        ],
        "Small kernels end before the next one is launched. Fewer and larger ones keep the device busy: a "
        "fused optimizer, a compiled model, a larger batch (which also changes what is learnt in a step).",
        options,
        "Capture the step in a CUDA graph; look in a profile for many tiny kernels.",
    )


def _spread(found: Spread | None) -> Spread:
    assert found is not None
    return found


def _waiting_copies(known: Known) -> list[tuple[str, str]]:
    """The copies that torch's sync debug mode named."""
    if known.inspected is None:
        return []
    steps = known.inspected.steps
    return [
        (line.place, f"waited for, {words.figure(line.calls / steps, 2)} a step")
        for line in known.inspected.copies
    ]


def _on(value: bool) -> str:
    return "on" if value else "off"


RULES = (
    Rule(
        "input-bound",
        "Load the data beside the training",
        f"at least {pct(INPUT_SHARE)} of the time waiting for the loader; on a GPU also gaps of at least "
        f"{pct(IDLE_SHARE)}",
        "the Profiler page's own verdict: without that wait a run is at most 1.25 times as fast",
        "data wait and, on a GPU, the device's gap",
        "`num_workers` (with `pin_memory` on a GPU), `prefetch_factor` where waits come in bursts",
        find_input_bound,
    ),
    Rule(
        "transfer-bound",
        "Copy from pinned memory without waiting",
        f"copies take at least {pct(COPY_SHARE)} of the device's time",
        'without them a run is at most 1.11 times as fast; CUDA C++ Best Practices Guide, "Pinned Memory"',
        "the copies on the device's clock",
        "`pin_memory`, `non_blocking`",
        find_transfer_bound,
    ),
    Rule(
        "launch-bound",
        "Give the device more work per launch",
        f"at least {pct(LAUNCH_SHARE)} of the steps take the CPU as long to issue as the device to do",
        "the Profiler page's own verdict; PyTorch Performance Tuning Guide on fused operations",
        "issue time, device time and gap of each step",
        "`optimizer_impl=fused`, then `compile`, then twice the `batch_size`",
        find_launch_bound,
    ),
)
