"""Out-of-memory reports of a run: created from the evidence, stored in its log and as text in its folder."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from harness import words
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import (
    LeakSign,
    LiveCategory,
    LiveSite,
    LiveVariable,
    MemoryAtFailure,
    OomFacts,
    OomPhase,
    OomReport,
    to_json,
)
from harness.analysis.oom.text import render
from harness.device.protocol import Device
from harness.notices import print_notice
from harness.records.memory import AllocationRow, LeakSeries, MemoryCategory, OomReportRow
from harness.records.run import DeviceKind, MemoryReading
from harness.store.folder import RunFolder
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch
from harness.watch.oom.capture import FailedRun, OomCapture, capture_evidence
from harness.watch.oom.errors import attempt
from harness.watch.oom.growth import with_growth
from harness.watch.oom.history import RunHistory, read_history, read_shortage
from harness.watch.training import Training, WatchSettings

_FLUSH_S = 2.0
MOST_SITES = 20
# As a share of what has leaked: smaller variables are beside the point.
LEAST_VARIABLE_SHARE = 0.01


class Subject(NamedTuple):
    """The subject of a report: the training, and its live allocations by site (of `Snapshots`)."""

    training: Training
    live_allocations: Callable[[], Iterable[AllocationRow]] = tuple


class OomReporter:
    """The reports of one run. Used on the training thread."""

    def __init__(
        self,
        context: RunContext,
        memory: MemoryWatch,
        folder: RunFolder,
        settings: WatchSettings,
        names: frozenset[str],
    ) -> None:
        """`settings` are those the run was started with, and `names` those among them that it has: a script
        has few of its own."""
        self._context = context
        self._memory = memory
        self._folder = folder
        self._settings = settings
        self._names = names

    def capture(
        self,
        error: BaseException,
        step: int,
        phase: OomPhase,
        memory: MemoryReading | None,
        subject: Subject | None,
    ) -> OomCapture:
        """Capture the evidence while the frames of `error` are alive. Lift the cap first, then read `memory`.
        `subject` is None before the training is built."""
        training = None if subject is None else subject.training
        settings = self._settings if training is None else training.settings
        run = FailedRun(
            settings,
            self._context.device,
            training,
            memory,
            self._memory.baseline_bytes,
            lambda: () if subject is None else live_sites(subject.live_allocations()),
        )
        return capture_evidence(error, step, phase, run)

    def explain(self, capture: OomCapture) -> OomReport:
        """Create the report from the evidence and the history in the log; its outcome is still empty."""
        attempt(lambda: self._context.journal.flush(_FLUSH_S))
        on_cpu = self._context.device.facts.kind is DeviceKind.CPU
        history = attempt(
            lambda: read_history(self._folder.log, capture.step, capture.settings, on_cpu=on_cpu)
        )
        history = history or RunHistory()
        if not history.names:
            history = history._replace(names=self._names)
        return explain(_facts(capture, history, self._context.device))

    def shortage(self) -> str:
        """Return sentences on the memory that was short before a loader's worker was killed; empty where it
        was not."""
        attempt(lambda: self._context.journal.flush(_FLUSH_S))
        on_cpu = self._context.device.facts.kind is DeviceKind.CPU
        return attempt(lambda: read_shortage(self._folder.log, on_cpu=on_cpu)) or ""

    def file(self, report: OomReport) -> None:
        """Write the report to the log and, as text, to the run's folder."""
        step = report.facts.step
        self._context.journal.put(
            OomReportRow(self._context.clock_ns(), step, report.outcome, to_json(report))
        )
        try:
            _write(self._folder.captures, f"oom-step-{step}", render(report) + "\n")
        except OSError as error:
            print_notice(f"The report on memory could not be written as text: {error}.")


def live_sites(rows: Iterable[AllocationRow]) -> list[LiveSite]:
    """Return the allocation sites with the most live memory of tracked allocations, summed over modules.
    Weights and the like are listed by module instead."""
    sites: dict[str, LiveSite] = {}
    for row in rows:
        if not row.stack:
            continue
        before = sites.get(row.site, LiveSite(row.site, 0, 0))
        sites[row.site] = LiveSite(row.site, before.held_bytes + row.held_bytes, before.blocks + row.blocks)
    return sorted(sites.values(), key=lambda site: -site.held_bytes)[:MOST_SITES]


def _facts(capture: OomCapture, history: RunHistory, device: Device) -> OomFacts:
    settings, memory = capture.settings, capture.memory_state
    if not capture.is_own_device:
        history = _without_memory(history)
    if memory.others_bytes is None:
        memory = memory._replace(others_bytes=history.others_bytes)
    if capture.request.phase is OomPhase.WORKER:
        leak = history.worker_leak
    else:
        leak, growth = (_at_most(sign, memory) for sign in (history.leak, history.growth))
        leak = with_growth(leak, growth, capture.variables)
    return OomFacts(
        step=capture.step,
        device=device.facts.kind,
        device_name=capture.device_name,
        error=capture.error,
        batch_size=settings.batch_size if history.has("batch_size") else None,
        grad_accumulation=settings.grad_accumulation if history.has("grad_accumulation") else None,
        amp=settings.amp.value if history.has("amp") else None,
        checkpointing=settings.activation_checkpointing if history.has("activation_checkpointing") else None,
        request=capture.request,
        memory=memory,
        is_first_update=capture.is_first_update,
        holders=_with_leak(capture.categories, leak),
        sites=capture.sites,
        steps=history.steps,
        peaks=history.peaks,
        static_bytes=capture.baseline_bytes if capture.is_own_device and capture.step > 2 else None,
        change=history.change,
        leak=leak,
        variables=_beside_leak(capture.variables, leak),
        calls_without_backward=capture.calls_without_backward,
    )


def _beside_leak(variables: tuple[LiveVariable, ...], leak: LeakSign | None) -> tuple[LiveVariable, ...]:
    """Return the variables worth listing beside `leak`; an incomplete count may be too small."""
    least_bytes = 0.0 if leak is None else LEAST_VARIABLE_SHARE * (leak.leaked_bytes or 0)
    return tuple(one for one in variables if one.held_bytes >= least_bytes or not one.is_complete)


def _without_memory(history: RunHistory) -> RunHistory:
    """Return the history without what it says about the memory of the run's device."""
    steps = (
        step._replace(allocated_bytes=None, peak_bytes=None, reserved_bytes=None) for step in history.steps
    )
    return history._replace(steps=tuple(steps), peaks=(), leak=None, growth=None, others_bytes=None)


def _at_most(leak: LeakSign | None, memory: MemoryAtFailure) -> LeakSign | None:
    """Return `leak` with an upper bound of the leaked bytes: the slope over all steps, at most the memory
    that grew."""
    if leak is None or leak.leaked_bytes is None:
        return leak
    limits_bytes: dict[str, int | None] = {
        LeakSeries.ALLOCATED: memory.allocated_bytes,
        LeakSeries.FRAGMENTATION: memory.unused_bytes,
        LeakSeries.HOST: None if memory.is_capped else memory.process_bytes,
    }
    if memory.outside_bytes is not None:
        limits_bytes[LeakSeries.HOST] = memory.outside_bytes
    most_bytes = limits_bytes.get(leak.series)
    return leak if most_bytes is None else leak._replace(leaked_bytes=min(leak.leaked_bytes, most_bytes))


# Series of memory that is none of live objects in this process.
_NOT_LIVE = (LeakSeries.FRAGMENTATION, LeakSeries.WORKERS)


def _with_leak(categories: tuple[LiveCategory, ...], leak: LeakSign | None) -> tuple[LiveCategory, ...]:
    """Return `categories` with the leak: one of live tensors is split off from those outside model and
    optimizer, any other becomes the first entry."""
    if leak is None or not leak.leaked_bytes or leak.series in _NOT_LIVE:
        return categories
    verb = "leaked" if leak.is_certain else "grown"
    name = f"{verb} since step {words.count(leak.since_step)}"
    if leak.series != LeakSeries.ALLOCATED:
        return (
            LiveCategory(f"{name}, outside the heap's live objects", None, leak.leaked_bytes),
            *categories,
        )
    unknown = MemoryCategory.UNKNOWN.value
    split = []
    for category in categories:
        if category.category == unknown and category.module is None:
            leaked = min(leak.leaked_bytes, category.held_bytes)
            split += [
                LiveCategory(name, None, leaked),
                category._replace(held_bytes=category.held_bytes - leaked),
            ]
        else:
            split.append(category)
    return tuple(category for category in split if category.held_bytes)


def _write(folder: Path, name: str, text: str) -> Path:
    """Write a file readable by its owner only; an existing name gets a number."""
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
