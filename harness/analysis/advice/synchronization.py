"""Rules on synchronization: values read in every step, and tensors on the wrong device."""

from collections.abc import Sequence

from harness import words
from harness.analysis.advice.code import code_for
from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.advice.inspection import SyncLine
from harness.analysis.advice.suggestion import Diagnosis, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import StepPart
from harness.analysis.timing.verdict import Bound

# Smaller gaps are not worth a change: differences are visible from 1 % on (`harness.analysis.effect`).
SYNC_SHARE = 0.02
_MAX_LISTED = 5


def find_synchronizing(run: RunEvidence) -> Diagnosis | None:
    """A value read in every step makes the CPU wait for the device, which is then idle until the next step is
    issued, for at least 2 % of the time. The value is the loss with `device_metrics` off, or a line that
    torch's sync debug mode reported in two inspected steps. A synchronization in the middle of a step makes
    the run look launch-bound; it is reported whatever the gap, without a bound. Copies of the batch have a
    rule of their own, and fp16's GradScaler, which also waits, is exempt."""
    device, cpu = run.timing.device, run.timing.cpu
    if device is None or cpu is None or run.bound is Bound.TOO_FEW:
        return None
    lines = _lines(run)
    share, gap = device.share(StepPart.GAP), device.spread(StepPart.GAP)
    is_hidden = run.bound is Bound.LAUNCH and any(line.is_within for line in lines)
    # A script reads its own metrics: only the lines tell.
    reads_loss = run.value("device_metrics") is False
    if gap is None or not (reads_loss or lines) or (share < SYNC_SHARE and not is_hidden):
        return None
    idle = f"is idle between steps for a median of {words.duration(gap.p50)}: {pct(share)} of the time."
    gain = at_most(share)
    if is_hidden:
        gain = Gain(None, "no synchronization within the step; the time saved cannot be estimated")
        idle = "runs out of work in the middle of the step, which does not show as a gap between steps."
    details = [
        ("metrics on the device", _on(run.value("device_metrics"))),
        ("device idle between steps, p50 / p95", f"{words.duration(gap.p50)} / {words.duration(gap.p95)}"),
        ("device idle", f"at least {pct(share)} of the time"),
        ("CPU outside the phases", f"{pct(cpu.share(StepPart.RESIDUAL))} of the time"),
        *_listed(run, lines),
    ]
    by_hand = "In your own code, keep losses and metrics as tensors and call .item() every 100 steps."
    if lines and not reads_loss:
        by_hand = f"Change {lines[0].place}: keep the value as a tensor and read it every 100 steps."
    return Diagnosis(
        gain,
        f"{_synchronization(run, lines)}, and the device then {idle}",
        details,
        "Reading a value waits for all work issued before it. Read some steps later, it is free.",
        [Option({"device_metrics": True}, gain)] if reads_loss else [],
        by_hand,
        "" if reads_loss else code_for({"device_metrics": True}),
    )


def _on(value: bool | None) -> str:
    return words.NOT_AVAILABLE if value is None else "on" if value else "off"


def _lines(run: RunEvidence) -> list[SyncLine]:
    """Lines that synchronize in every step. Offloading synchronizes wherever a tensor is saved."""
    if run.inspection is None or run.settings.offload_saved_tensors:
        return []
    return run.inspection.lines_of_every_step()


def _synchronization(run: RunEvidence, lines: Sequence[SyncLine]) -> str:
    if not lines or run.inspection is None:
        return "The loss is read from the device in every step"
    calls_per_step = sum(line.calls for line in lines) / run.inspection.steps
    times = "once" if calls_per_step == 1 else f"{words.figure(calls_per_step, 2)} times"
    return f"The CPU waits for the device {times} per step, at {lines[0].place}"


def _listed(run: RunEvidence, lines: Sequence[SyncLine]) -> list[tuple[str, str]]:
    steps = 1 if run.inspection is None else run.inspection.steps
    return [(line.place, f"{words.figure(line.calls / steps, 2)} per step") for line in lines[:_MAX_LISTED]]


def find_misplaced_tensors(run: RunEvidence) -> Diagnosis | None:
    """A parameter or a buffer on the CPU in a module that has tensors on the training GPU, optimizer state of
    a weight on it, or the loss, in two inspected steps. Each use together with tensors on the GPU copies it,
    and the copy synchronizes. Modules that are completely on the CPU or on another GPU are there by design,
    as are step counters of optimizers, and batches come from host memory; none of these counts."""
    if not run.is_gpu or run.inspection is None or not run.inspection.misplaced:
        return None
    tensors = run.inspection.misplaced
    size_bytes = sum(tensor.size_bytes for tensor in tensors)
    first, others = tensors[0], len(tensors) - 1
    more = f" and {words.plural(others, 'more tensor')}" if others else ""
    lines = run.inspection.lines_of_every_step()
    copied = f"; the CPU waits for the device at {lines[0].place}" if lines else ""
    return Diagnosis(
        Gain(None, f"no copies of {words.size(size_bytes)} per use; the time saved cannot be estimated"),
        f"The {first.what} {first.name} ({words.size(first.size_bytes)}){more} "
        f"{'are' if others else 'is'} on {first.device}, while "
        f"the run trains on {run.device.torch_name}{copied}.",
        [
            (f"{tensor.what} {tensor.name}", f"{words.size(tensor.size_bytes)} on {tensor.device}")
            for tensor in tensors[:_MAX_LISTED]
        ]
        + _listed(run, lines),
        "A tensor on another device is copied to the GPU at each use, and the CPU waits for the copy.",
        by_hand="Register a module's tensors as nn.Parameter or with register_buffer and call .to(device) on "
        "the complete module; create new tensors with device=x.device; compute metrics on the device of the "
        "outputs.",
    )


RULES = (
    Rule(
        "synchronizing",
        "Read metrics without synchronizing",
        f"`device_metrics` off or a line that synchronizes in every step, and gaps of at least "
        f"{pct(SYNC_SHARE)} of the time, or a run that looks launch-bound",
        'PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization"; less than 2 % shows '
        "in no comparison",
        "the setting, the lines reported by `torch.cuda.set_sync_debug_mode`, and the device's gap",
        "`device_metrics`",
        find_synchronizing,
    ),
    Rule(
        "misplaced-tensors",
        "Move all tensors to the GPU",
        "a parameter, a buffer, optimizer state (except step counters) or the loss on the CPU, in a module "
        "or of a weight on the GPU",
        "each use copies such a tensor",
        "the device of each tensor of model, optimizer and loss, after warm-up and after each change",
        "none",
        find_misplaced_tensors,
    ),
)
