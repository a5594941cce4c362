"""Notices on the state of a machine at one moment, one sentence each. Pure functions."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.machine.throttle import SEVERE, active_reasons, throttle_clause

# Shares from which memory is reported as almost full. Linux needs some 5 % of RAM to stay responsive; a
# device's memory can be used almost completely, with a small reserve for the driver.
RAM_FULL, DEVICE_FULL = 0.95, 0.97
# Processors are overloaded if all of them are this busy, and this many threads per core run or wait: below
# that, one training with as many threads as cores keeps them busy, as it should.
BUSY_PCT, LEAST_PER_CORE = 95, 1.5
# Below this a disk is reported as almost full. The log of a million steps takes some 144 MB.
LEAST_DISK_BYTES = 256 << 20


class Tone(StrEnum):
    """Severity of a notice."""

    CALM = "calm"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


class GpuFacts(NamedTuple):
    """State of one GPU; None where it is not reported."""

    name: str
    throttle_reasons: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    ecc_uncorrected: int | None
    # Stepscope runs that train on it now.
    runs: int
    # Number of other processes on it.
    strangers: int | None
    strangers_bytes: int | None
    util_pct: float | None


class CpuFacts(NamedTuple):
    """State of all processors; None where it is not reported."""

    # Mean over the last seconds.
    busy_pct: float | None = None
    # The load average of the last minute.
    load: float | None = None
    cores: int | None = None


class MachineNotice(NamedTuple):
    """One notice, as a sentence."""

    tone: Tone
    sentence: str


def machine_notices(
    gpus: Sequence[GpuFacts],
    ram_used_bytes: int | None,
    ram_total_bytes: int | None,
    cpu: CpuFacts | None = None,
    disk_free_bytes: int | None = None,
) -> list[MachineNotice]:
    """All notices, the most severe first; empty on a calm machine. `disk_free_bytes` is what a user may still
    write on the disk of the home."""
    notices = [notice for gpu in gpus for notice in _of_gpu(gpu)]
    if ram_used_bytes and ram_total_bytes and ram_used_bytes >= RAM_FULL * ram_total_bytes:
        sentence = (
            f"RAM is almost full, {words.size(ram_used_bytes)} of {words.size(ram_total_bytes)}: the system "
            "may kill a process to free some."
        )
        notices.append(MachineNotice(Tone.BAD, sentence))
    if disk_free_bytes is not None and disk_free_bytes < LEAST_DISK_BYTES:
        sentence = (
            f"The disk of the runs is almost full, with {words.size(disk_free_bytes)} free: on a full one no "
            "run can start, and the logs of live runs wait for space."
        )
        notices.append(MachineNotice(Tone.BAD, sentence))
    if cpu is not None:
        notices += _of_cpu(cpu)
    order = (Tone.BAD, Tone.WARNING, Tone.NOTE, Tone.CALM)
    return sorted(notices, key=lambda notice: order.index(notice.tone))


def _of_gpu(gpu: GpuFacts) -> list[MachineNotice]:
    notices = []
    if gpu.ecc_uncorrected:
        errors = words.plural(gpu.ecc_uncorrected, "uncorrectable memory error")
        sentence = f"{gpu.name} had {errors}: results may be wrong; have it checked."
        notices.append(MachineNotice(Tone.BAD, sentence))
    reasons = active_reasons(gpu.throttle_reasons)
    if reasons:
        sentence = f"{gpu.name} is throttled: {throttle_clause(gpu.throttle_reasons)}."
        is_severe = any(reason & SEVERE for reason in reasons)
        if not is_severe:
            sentence += " That is normal under full load."
        notices.append(MachineNotice(Tone.BAD if is_severe else Tone.NOTE, sentence))
    if gpu.runs and gpu.strangers:
        memory = f", with {words.size(gpu.strangers_bytes)} of memory" if gpu.strangers_bytes else ""
        who = "Another process uses" if gpu.strangers == 1 else f"{gpu.strangers} other processes use"
        sentence = f"{who} {gpu.name} during the run{memory}: step times include that load."
        notices.append(MachineNotice(Tone.WARNING, sentence))
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used and total and used >= DEVICE_FULL * total:
        sentence = f"The memory of {gpu.name} is almost full, {words.size(used)} of {words.size(total)}."
        notices.append(MachineNotice(Tone.WARNING, sentence))
    return notices


def _of_cpu(cpu: CpuFacts) -> list[MachineNotice]:
    if cpu.busy_pct is None or cpu.load is None or not cpu.cores:
        return []
    if cpu.busy_pct < BUSY_PCT or cpu.load < LEAST_PER_CORE * cpu.cores:
        return []
    cores = "The core is" if cpu.cores == 1 else f"All {words.count(cpu.cores)} cores are"
    sentence = (
        f"{cores} {words.percent(cpu.busy_pct)} busy, and the load of the last minute is "
        f"{words.figure(cpu.load, 2)}: more threads have work than there are cores, so they wait for one "
        "another, and step times include that."
    )
    return [MachineNotice(Tone.WARNING, sentence)]


def calm_sentence(gpus: Sequence[GpuFacts]) -> str:
    """The sentence for a machine without notices."""
    if not gpus:
        return "Nothing stands out."
    busy = [gpu for gpu in gpus if gpu.util_pct is not None and gpu.util_pct >= 1]
    if len(gpus) == 1:
        activity = f"the GPU is {'busy' if busy else 'idle'}"
    else:
        activity = f"{len(busy)} of {len(gpus)} GPUs {'is' if len(busy) == 1 else 'are'} busy"
    return f"Nothing stands out: {activity}, none is throttled, and memory is free."
