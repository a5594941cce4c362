"""Makes the out-of-memory report of a run, and leaves it in its log and as a text in its folder."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from harness import words
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import (
    Held,
    Holder,
    LeakSign,
    LiveSite,
    OomFacts,
    OomPhase,
    OomReport,
    to_json,
)
from harness.analysis.oom.text import render
from harness.device.protocol import Device
from harness.records.memory import AllocationRow, LeakSeries, MemoryCategory, OomReportRow
from harness.records.run import DeviceKind, MemoryReading
from harness.store.folder import RunFolder
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch
from harness.watch.oom.capture import OomCapture, look
from harness.watch.oom.errors import attempt
from harness.watch.oom.history import RunHistory, read_history
from harness.watch.training import Training, WatchSettings

_FLUSH_S = 2.0
MOST_SITES = 20


class Subject(NamedTuple):
    """The subject of a report: the training, and its live allocations by site (`Snapshots.holders`)."""

    training: Training
    holders: Callable[[], Iterable[AllocationRow]] = tuple


class OomReporter:
    """One run's reports. Used on the training thread."""

    def __init__(
        self, context: RunContext, memory: MemoryWatch, folder: RunFolder, settings: WatchSettings
    ) -> None:
        """`settings` are those the run was started with."""
        self._context = context
        self._memory = memory
        self._folder = folder
        self._settings = settings

    def look(
        self,
        error: BaseException,
        step: int,
        phase: OomPhase,
        memory: MemoryReading | None,
        subject: Subject | None,
    ) -> OomCapture:
        """Capture what there is while the frames of `error` are alive. Take the cap off first, then read
        `memory`. `subject` is None before the training is built."""
        training = None if subject is None else subject.training
        settings = self._settings if training is None else training.settings
        return look(
            error,
            step,
            settings,
            self._context.device,
            training,
            phase,
            memory,
            self._memory.level_bytes,
            settings.memory_cap_bytes,
            lambda: () if subject is None else live_sites(subject.holders()),
        )

    def explain(self, scene: OomCapture) -> OomReport:
        """The report on what was seen, with what the log says about the time before; its outcome is open."""
        attempt(lambda: self._context.journal.flush(_FLUSH_S))
        on_cpu = self._context.device.facts.kind is DeviceKind.CPU
        told = attempt(lambda: read_history(self._folder.log, scene.step, scene.settings, on_cpu=on_cpu))
        told = told or RunHistory()
        return explain(_facts(scene, told, self._context.device))

    def file(self, report: OomReport) -> None:
        """Leave the report in the log and, as text, in the run's folder."""
        step = report.facts.step
        self._context.journal.put(
            OomReportRow(self._context.clock_ns(), step, report.outcome, to_json(report))
        )
        try:
            _write(self._folder.captures, f"oom-step-{step}", render(report) + "\n")
        except OSError as error:
            print(f"The report on memory could not be written as text: {error}.", flush=True)


def live_sites(rows: Iterable[AllocationRow]) -> list[LiveSite]:
    """The lines that hold the most, of what was made while it was followed (weights and the like are told by
    module); one line may serve several modules."""
    found: dict[str, LiveSite] = {}
    for row in rows:
        if not row.stack:
            continue
        before = found.get(row.site, LiveSite(row.site, 0, 0))
        found[row.site] = LiveSite(row.site, before.held_bytes + row.held_bytes, before.blocks + row.blocks)
    return sorted(found.values(), key=lambda site: -site.held_bytes)[:MOST_SITES]


def _facts(scene: OomCapture, told: RunHistory, device: Device) -> OomFacts:
    settings, held = scene.settings, scene.held
    if held.others_bytes is None:
        held = held._replace(others_bytes=told.others_bytes)
    leak = None if told.leak is None else told.leak._replace(leaked_bytes=_leaked(told.leak, held))
    return OomFacts(
        step=scene.step,
        device=device.facts.kind,
        device_name=device.facts.name,
        error=scene.error,
        batch_size=settings.batch_size,
        grad_accumulation=settings.grad_accumulation,
        amp=settings.amp.value,
        checkpointing=settings.activation_checkpointing,
        asked=scene.asked,
        held=held,
        is_first_update=scene.step == 1,
        holders=_with_leak(scene.holders, leak),
        sites=scene.sites,
        steps=told.steps,
        peaks=told.peaks,
        static_bytes=scene.level_bytes if scene.step > 2 else None,
        change=told.change,
        leak=leak,
    )


def _leaked(leak: LeakSign, held: Held) -> int | None:
    """What leaked at most: its slope over all steps, no more than there is of what grew."""
    rooms: dict[str, int | None] = {
        LeakSeries.ALLOCATED: held.allocated_bytes,
        LeakSeries.FRAGMENTATION: held.unused_bytes,
        LeakSeries.HOST: None if held.is_capped else held.process_bytes,
    }
    if held.cap_bytes is not None and held.cap_left_bytes is not None and held.reserved_bytes is not None:
        rooms[LeakSeries.HOST] = max(0, held.cap_bytes - held.cap_left_bytes - held.reserved_bytes)
    most_bytes = rooms.get(leak.series)
    if leak.leaked_bytes is None or most_bytes is None:
        return leak.leaked_bytes
    return min(leak.leaked_bytes, most_bytes)


def _with_leak(holders: tuple[Holder, ...], leak: LeakSign | None) -> tuple[Holder, ...]:
    """`holders` with the leak of live tensors named in what belongs to neither model nor optimizer, and one
    outside of them before all."""
    if leak is None or not leak.leaked_bytes or leak.series == LeakSeries.FRAGMENTATION:
        return holders
    verb = "leaked" if leak.is_certain else "grown"
    name = f"{verb} since step {words.count(leak.since_step)}"
    if leak.series != LeakSeries.ALLOCATED:
        return (Holder(f"{name}, outside the heap's live objects", None, leak.leaked_bytes), *holders)
    unknown = MemoryCategory.UNKNOWN.value
    found = []
    for holder in holders:
        if holder.category == unknown and holder.module is None:
            leaked = min(leak.leaked_bytes, holder.held_bytes)
            found += [Holder(name, None, leaked), holder._replace(held_bytes=holder.held_bytes - leaked)]
        else:
            found.append(holder)
    return tuple(holder for holder in found if holder.held_bytes)


def _write(folder: Path, name: str, text: str) -> Path:
    """Write a file for its owner alone; a name that is taken gets a number."""
    folder.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while True:
        path = folder / (f"{name}.txt" if number == 1 else f"{name}-{number}.txt")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        return path
