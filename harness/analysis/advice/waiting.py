"""Rules on what makes the CPU wait for the device: values read in every step, tensors that lie elsewhere."""

from collections.abc import Sequence

from harness import words
from harness.analysis.advice.inspected import Line
from harness.analysis.advice.known import Known
from harness.analysis.advice.suggestion import Finding, Gain, Option, Rule, at_most, pct
from harness.analysis.timing.phases import Part
from harness.analysis.timing.verdict import Bound

# Smaller gaps are not worth a change: one is visible from 1 % on (`harness.analysis.effect`).
SYNC_SHARE = 0.02
_MOST_NAMED = 5


def find_synchronising(known: Known) -> Finding | None:
    """A value read in every step makes the CPU wait for the device, which then stands idle until the next
    step is issued: at least 2 % of the time, since less shows in no comparison. It is the loss with
    `device_metrics` off, or a line that torch's sync debug mode named in two unsettled steps. A line in the
    midst of a step makes it look launch-bound: then it is told whatever the gap, without a bound. Copies of
    the batch have a rule of their own, and the scaler of fp16, which waits too, is not meant."""
    device, cpu = known.timing.device, known.timing.cpu
    if device is None or cpu is None or known.bound is Bound.TOO_FEW:
        return None
    lines = _lines(known)
    share, gap = device.share(Part.GAP), device.spread(Part.GAP)
    is_hidden = known.bound is Bound.LAUNCH and any(line.is_within for line in lines)
    if gap is None or (known.settings.device_metrics and not lines) or (share < SYNC_SHARE and not is_hidden):
        return None
    idle = f"stands idle for {words.duration(gap.p50)} in the median: {pct(share)} of the time."
    gain = at_most(share)
    if is_hidden:
        gain = Gain(None, "no waiting in the midst of a step; how much time that takes cannot be told")
        idle = "runs dry in the midst of a step, where it shows in no gap."
    details = [
        ("metrics on the device", "on" if known.settings.device_metrics else "off"),
        ("device idle between steps, p50 / p95", f"{words.duration(gap.p50)} / {words.duration(gap.p95)}"),
        ("device idle", f"at least {pct(share)} of the time"),
        ("CPU outside the phases", f"{pct(cpu.share(Part.RESIDUAL))} of the time"),
        *_named(known, lines),
    ]
    by_hand = "In your own code, keep losses and metrics as tensors and call .item() every hundredth step."
    if lines and known.settings.device_metrics:
        by_hand = f"Change {lines[0].place}: keep the value as a tensor and read it every hundredth step."
    return Finding(
        gain,
        f"{_what(known, lines)}, and the device then {idle}",
        details,
        "A value can be read only when all before it is done. Read some steps later, it costs nothing.",
        [Option({"device_metrics": True}, gain)],
        by_hand,
    )


def _lines(known: Known) -> list[Line]:
    """What torch's sync debug mode named, in every step. Offloading waits wherever a tensor is saved."""
    if known.inspected is None or known.settings.offload_saved_tensors:
        return []
    return known.inspected.every_step()


def _what(known: Known, lines: Sequence[Line]) -> str:
    if not lines or known.inspected is None:
        return "The loss is read off the device in every step"
    often = sum(line.calls for line in lines) / known.inspected.steps
    times = "once" if often == 1 else f"{words.figure(often, 2)} times"
    return f"The CPU waits for the device {times} a step, at {lines[0].place}"


def _named(known: Known, lines: Sequence[Line]) -> list[tuple[str, str]]:
    steps = 1 if known.inspected is None else known.inspected.steps
    return [(line.place, f"{words.figure(line.calls / steps, 2)} a step") for line in lines[:_MOST_NAMED]]


def find_elsewhere(known: Known) -> Finding | None:
    """A parameter, a buffer, the optimizer's state or the loss that is not on the GPU trained on, when two
    unsettled steps were inspected. It is copied whenever it is used together with what is there, and the copy
    waits. Batches come from the host's memory as a rule, and the optimizers' step counters are meant to lie
    there; neither counts."""
    if not known.is_gpu or known.inspected is None or not known.inspected.elsewhere:
        return None
    found = known.inspected.elsewhere
    size = sum(one.size_bytes for one in found)
    first, others = found[0], len(found) - 1
    more = f" and {words.plural(others, 'more tensor')}" if others else ""
    lines = known.inspected.every_step()
    copied = f"; torch names {lines[0].place}, where the CPU waits" if lines else ""
    return Finding(
        Gain(None, f"no copies of {words.size(size)} in each use; how much time they take cannot be told"),
        f"The {first.what} {first.name} ({words.size(first.size_bytes)}){more} "
        f"{'lie' if others else 'lies'} on {first.device}, while "
        f"the run trains on {known.device.torch_name}{copied}.",
        [
            (f"{one.what} {one.name}", f"{words.size(one.size_bytes)} on {one.device}")
            for one in found[:_MOST_NAMED]
        ]
        + _named(known, lines),
        "What is used on the GPU and lies elsewhere is copied each time, and the CPU waits for the copy.",
        by_hand="Keep tensors of a module as nn.Parameter or with register_buffer and move the module with "
        ".to(device) once it is whole; make new tensors with device=x.device; compute metrics where the "
        "outputs are.",
    )


RULES = (
    Rule(
        "synchronising",
        "Read metrics without waiting for the device",
        f"`device_metrics` off or a line that makes the CPU wait in every step, and gaps of at least "
        f"{pct(SYNC_SHARE)} of the time, or a run that looks launch-bound",
        'PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization"; less than 2 % shows '
        "in no comparison",
        "the setting, the lines that `torch.cuda.set_sync_debug_mode` names, and the device's gap",
        "`device_metrics`",
        find_synchronising,
    ),
    Rule(
        "elsewhere",
        "Move everything to the GPU",
        "a parameter, a buffer, optimizer state (step counters aside) or the loss on another device",
        "there is no reason to keep one elsewhere; each use copies it",
        "where the tensors of model, optimizer and loss lie, at the end of warm-up and after each change",
        "none",
        find_elsewhere,
    ),
)
