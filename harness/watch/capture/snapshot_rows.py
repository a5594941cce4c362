"""Rows and file of a snapshot from the tracking result."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness import words
from harness.analysis.leak import wording
from harness.analysis.memory.snapshots import LEAST_GROWN_BYTES, by_category, heap_sentence, suspect_sentence
from harness.device.allocated import allocated_bytes
from harness.device.protocol import AllocatorReading
from harness.records.memory import AllocationRow, ModuleMemoryRow, SnapshotReason, SnapshotRow
from harness.records.run import EventKind, EventRow, Severity
from harness.tracking.blocks import LiveBlock, TrackingResult, summarize
from harness.tracking.owners import OwnedSize, module_memory_rows
from harness.tracking.retained_graphs import RetainedGraphs
from harness.tracking.snapshot_file import WrittenFile, write
from harness.watch.training import Training

CENSUS = "the model's and the optimizer's tensors, counted once in a step after the gradients were made"
_SHOWN_CATEGORIES = 4
# Below this, tensors on another device are the counts of steps that optimizers keep on the CPU.
_LEAST_ELSEWHERE_BYTES = 1 << 20


class Census(NamedTuple):
    """The tensors of model and optimizer on the run's device, the bytes of those on each other device, such
    as "cpu" or "cuda:1", and the allocator's reading."""

    sizes: list[OwnedSize]
    elsewhere_bytes: Mapping[str, int]
    reading: AllocatorReading


class SnapshotWindow(NamedTuple):
    """The conditions of a snapshot. `residual_bytes` is memory allocated before it without a known tensor;
    `last_step` is its last step; durations are in nanoseconds. `heap_bytes` is what was allocated on the
    CPU's heap after each step; empty on other devices. `verdict_slope` is that of `SnapshotRequest`."""

    reason: SnapshotReason
    method: str
    last_step: int
    steps_ns: list[int]
    ordinary_ns: list[int]
    residual_bytes: int | None
    took_ns: int
    command_id: str | None
    heap_bytes: list[int | None]
    verdict_slope: float | None = None


class SnapshotRows(NamedTuple):
    """The rows of a snapshot, in the order of writing. `heap_growth` is a sentence on growth of the CPU's
    heap that no tensor explains; `has_growth` is whether any growth was found, of tensors, of graphs or of
    the heap."""

    allocations: list[AllocationRow]
    modules: list[ModuleMemoryRow]
    snapshot: SnapshotRow
    heap_growth: str | None = None
    has_growth: bool = False


class SnapshotWriter:
    """Creates the numbered rows of snapshots. `captures` is the folder of the files."""

    def __init__(self, training: Training, captures: Path, clock_ns: Callable[[], int]) -> None:
        self._training = training
        self._captures = captures
        self._clock_ns = clock_ns
        self._last_id = 0

    def count(self, census: Census, step: int, took_ns: int) -> SnapshotRows:
        """Return the rows of a census."""
        self._last_id += 1
        number = self._last_id
        blocks = [
            LiveBlock(s.size_bytes, s.owner.category, s.owner.module, s.owner.name, "") for s in census.sizes
        ]
        summary = summarize(number, blocks, None)
        row = SnapshotRow(
            snapshot_id=number,
            t_ns=self._clock_ns(),
            step=step,
            reason=SnapshotReason.START,
            method=CENSUS,
            tracked_steps=0,
            allocated_bytes=allocated_bytes(census.reading),
            reserved_bytes=census.reading.reserved_bytes,
            explained_bytes=summary.explained_bytes,
            sites=summary.sites,
            took_ns=took_ns,
            slowdown=None,
            file=None,
            file_bytes=None,
            message=f"The model and its optimizer hold {_parts(summary.rows)}.{_elsewhere(census)}",
        )
        return SnapshotRows(summary.rows, module_memory_rows(number, self._training.model, census.sizes), row)

    def sum_up(
        self,
        followed: TrackingResult,
        tensor_sizes: list[OwnedSize],
        window: SnapshotWindow,
        reserved_bytes: int | None,
    ) -> SnapshotRows:
        """Return the rows of tracked steps, and write their file. `took_ns` includes the time for this."""
        began_ns = self._clock_ns()
        self._last_id += 1
        number = self._last_id
        summary = summarize(number, followed.live, followed.retained, replaced=followed.replaced)
        residual = window.residual_bytes
        allocated = None if residual is None else summary.explained_bytes + residual
        file = self._captures / f"snapshot-{number}.pickle"
        written, problem = self._write(file, followed)
        graphs, heap_growth = followed.graphs, _heap_growth(window, summary.rows, followed)
        if heap_growth is not None and followed.graphs_of_results is not None:
            # The heap grows beside tensors: by the nodes of these graphs.
            graphs, heap_growth = followed.graphs_of_results, None
        notes = [
            _sentence(window, summary.rows, allocated, summary.explained_bytes, graphs, heap_growth),
            followed.note,
            problem,
        ]
        slowdown = _slowdown(window)
        row = SnapshotRow(
            snapshot_id=number,
            t_ns=self._clock_ns(),
            step=window.last_step,
            reason=window.reason,
            method=window.method,
            tracked_steps=len(window.steps_ns),
            allocated_bytes=allocated,
            reserved_bytes=reserved_bytes,
            explained_bytes=summary.explained_bytes,
            sites=summary.sites,
            took_ns=window.took_ns + self._clock_ns() - began_ns,
            slowdown=slowdown,
            file=None if written is None else file.name,
            file_bytes=None if written is None else written.size_bytes,
            message=" ".join(note for note in notes if note),
        )
        return SnapshotRows(
            summary.rows,
            module_memory_rows(number, self._training.model, tensor_sizes, followed.activation_bytes),
            row,
            heap_growth,
            _is_growing(summary.rows) or graphs is not None or heap_growth is not None,
        )

    def _write(self, file: Path, followed: TrackingResult) -> tuple[WrittenFile | None, str]:
        """Return the written file, and a note on it."""
        if followed.raw is None:
            return None, ""
        try:
            written = write(file, followed.raw)
        except OSError as error:
            return None, f"The raw snapshot could not be written: {error.strerror or error}."
        return written, written.cut


def event(row: SnapshotRow, command_id: str | None, *, is_doubtful: bool = False) -> EventRow:
    """Return the event on the chart; of the hunt for a leak a warning, unless that leak is in doubt."""
    detail = json.dumps(
        {"snapshot_id": row.snapshot_id, "reason": row.reason, "file": row.file, "slowdown": row.slowdown}
    )
    is_leak = row.reason == SnapshotReason.LEAK and not is_doubtful
    severity = Severity.WARNING if is_leak else Severity.INFO
    return EventRow(
        row.t_ns, row.step, EventKind.SNAPSHOT, severity, "snapshot", row.message, detail, command_id
    )


def hunt_refusal(t_ns: int, step: int, why: str) -> EventRow:
    """Return the event on a hunt for a leak that `why`, a sentence, prevents."""
    message = wording.no_site(why)
    return EventRow(t_ns, step, EventKind.WARNING, Severity.INFO, "leak hunt refused", message, "{}", None)


def history_refusal(t_ns: int, step: int, why: str) -> EventRow:
    """Return the event on a setting `memory_history` that has no effect because of `why`, a sentence."""
    message = f"The setting memory_history has no effect. {why}"
    return EventRow(
        t_ns, step, EventKind.WARNING, Severity.INFO, "no allocation history", message, "{}", None
    )


def _slowdown(window: SnapshotWindow) -> float | None:
    if not window.ordinary_ns or not window.steps_ns:
        return None
    return median(window.steps_ns) / max(1, median(window.ordinary_ns))


def _heap_growth(window: SnapshotWindow, rows: list[AllocationRow], followed: TrackingResult) -> str | None:
    """Return the sentence on growth of the heap in the hunt for a leak; None where the nodes of
    retained graphs, which are on the heap, explain it, or where not every tensor was tracked."""
    if window.reason is not SnapshotReason.LEAK or followed.graphs is not None or followed.note:
        return None
    return heap_sentence(rows, window.heap_bytes, window.verdict_slope)


def _is_growing(rows: list[AllocationRow]) -> bool:
    return any((row.grown_bytes or 0) >= LEAST_GROWN_BYTES for row in rows)


def _sentence(
    window: SnapshotWindow,
    rows: list[AllocationRow],
    allocated: int | None,
    explained: int,
    graphs: RetainedGraphs | None,
    heap_growth: str | None,
) -> str:
    steps = len(window.steps_ns)
    is_growing = _is_growing(rows)
    parts = []
    if window.reason is not SnapshotReason.LEAK:
        peak = explained if allocated is None else allocated
        # On the CPU what is allocated is the whole heap's, of which the tensors may be a small part.
        tensors = "" if peak == explained else f", of which {words.size(explained)} are tensors"
        many = f"In {words.plural(steps, 'step')} at most {words.size(peak)} were allocated{tensors}"
        parts.append(f"{many}: {_parts(rows)}.")
    if heap_growth is not None:
        parts.append(heap_growth)
    if is_growing or (window.reason is SnapshotReason.LEAK and graphs is None and heap_growth is None):
        parts.append(suspect_sentence(rows, steps))
    if graphs is not None:
        parts.append(graphs_sentence(graphs))
    return " ".join(parts)


def graphs_sentence(graphs: RetainedGraphs) -> str:
    """Return the sentence on graphs that were retained after their steps."""
    many = f"The autograd graphs of {graphs.retained:,} of {words.plural(graphs.steps, 'step')} were retained"
    if graphs.site is not None:
        cause = f" by a tensor created at {graphs.site}"
    elif graphs.operation is not None:
        cause = f" by the result of an operation {graphs.operation}"
    else:
        cause = ""
    begin = f"{many}{cause}: their nodes stay on the host's heap, outside of tensors."
    if not graphs.of_losses:
        return f"{begin} An output or hidden state that is collected keeps its graph; use detach() there."
    return (
        f"{begin} A loss or metric that is added up or collected keeps its graph; use loss.detach() or "
        "loss.item() there."
    )


def _elsewhere(census: Census) -> str:
    """Return a sentence, after a space, on what is on other devices; empty without."""
    parts = [
        f"{words.size(size_bytes)} on {name}"
        for name, size_bytes in sorted(census.elsewhere_bytes.items())
        if size_bytes >= _LEAST_ELSEWHERE_BYTES
    ]
    return f" Not counted, because on another device: {', '.join(parts)}." if parts else ""


def _parts(rows: list[AllocationRow]) -> str:
    parts = [f"{words.size(part.held_bytes)} {part.category}" for part in by_category(rows)]
    return ", ".join(parts[:_SHOWN_CATEGORIES]) or "nothing"
