"""What stands out about a machine at a moment, in one sentence. Pure functions."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.machine.throttle import SEVERE, active, in_words

# Shares above which memory is called almost full. Of RAM some 5 % is what Linux needs to stay responsive; a
# device's memory can be used to the end, a little is left for the driver's own surprises.
RAM_FULL, DEVICE_FULL = 0.95, 0.97


class Tone(StrEnum):
    """How much it matters."""

    CALM = "calm"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


class GpuFacts(NamedTuple):
    """What the sentence needs to know about one GPU; None where it is not told."""

    name: str
    throttle_reasons: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    ecc_uncorrected: int | None
    runs: int
    """Runs of ours that train on it now."""
    strangers: int | None
    """Other processes on it."""
    strangers_bytes: int | None
    util_pct: float | None


class Finding(NamedTuple):
    """One thing that stands out, as a sentence."""

    tone: Tone
    sentence: str


def findings(
    gpus: Sequence[GpuFacts], ram_used_bytes: int | None, ram_total_bytes: int | None
) -> list[Finding]:
    """Everything that stands out, the most severe first; empty when nothing does."""
    found = [finding for gpu in gpus for finding in _of_gpu(gpu)]
    if ram_used_bytes and ram_total_bytes and ram_used_bytes >= RAM_FULL * ram_total_bytes:
        sentence = (
            f"RAM is almost full, {words.size(ram_used_bytes)} of {words.size(ram_total_bytes)}: the system "
            "may end a process to get some back."
        )
        found.append(Finding(Tone.BAD, sentence))
    order = (Tone.BAD, Tone.WARNING, Tone.NOTE, Tone.CALM)
    return sorted(found, key=lambda finding: order.index(finding.tone))


def _of_gpu(gpu: GpuFacts) -> list[Finding]:
    found = []
    if gpu.ecc_uncorrected:
        errors = words.plural(gpu.ecc_uncorrected, "memory error")
        sentence = (
            f"{gpu.name} had {errors} that could not be corrected: results may be wrong; have it checked."
        )
        found.append(Finding(Tone.BAD, sentence))
    reasons = active(gpu.throttle_reasons)
    if reasons:
        sentence = f"{gpu.name} holds its clocks back: {in_words(gpu.throttle_reasons)}."
        is_severe = any(reason & SEVERE for reason in reasons)
        if not is_severe:
            sentence += " That is usual under full load."
        found.append(Finding(Tone.BAD if is_severe else Tone.NOTE, sentence))
    if gpu.runs and gpu.strangers:
        held = f", holding {words.size(gpu.strangers_bytes)}" if gpu.strangers_bytes else ""
        who = "Another process uses" if gpu.strangers == 1 else f"{gpu.strangers} other processes use"
        found.append(Finding(Tone.WARNING, f"{who} {gpu.name} beside the run{held}: times are not its own."))
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used and total and used >= DEVICE_FULL * total:
        sentence = f"The memory of {gpu.name} is almost full, {words.size(used)} of {words.size(total)}."
        found.append(Finding(Tone.WARNING, sentence))
    return found


def calm_sentence(gpus: Sequence[GpuFacts]) -> str:
    """What to say when nothing stands out."""
    if not gpus:
        return "Nothing stands out."
    busy = [gpu for gpu in gpus if gpu.util_pct is not None and gpu.util_pct >= 1]
    if len(gpus) == 1:
        doing = f"the GPU is {'busy' if busy else 'idle'}"
    else:
        doing = f"{len(busy)} of {len(gpus)} GPUs {'is' if len(busy) == 1 else 'are'} busy"
    return f"Nothing stands out: {doing}, nothing is held back, and there is memory left."
