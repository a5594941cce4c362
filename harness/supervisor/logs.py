"""A summary of a run's log, cached until the log's files change."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.analysis.memory.readings import newest_reading
from harness.analysis.timing.throughput import samples_per_s
from harness.errors import LogError, LogMissingError
from harness.records.run import EXCLUDED_FLAGS, RunRow, RunState, StepRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader, StepExtent
from harness.supervisor.end_causes import read_end_causes

RECENT_STEPS = 50
# In a list of runs each waits for the others; the facts of ten million steps take milliseconds.
_LIMIT_S = 5.0
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "allocated_bytes")
# Up to this number of new steps is read one by one; otherwise, as for a new log, rollups are read.
_MOST_NEW_STEPS = 256
# SQLite shows a commit a moment after it has written the file: what was read within this time of the files'
# newest time is read once more.
_SETTLED_NS = 1_000_000_000
_OVER = frozenset(state.value for state in RunState if state.is_over)


class LogTotals(NamedTuple):
    """Totals over all steps of a log: the number of rows, and the maxima of `_PEAKS`."""

    rows: int
    highest: tuple[int | None, ...]


class PaceSteps(NamedTuple):
    """The newest steps, and those of them in a steady state; a step time is of all of them if none is."""

    steady: int
    newest: int


class LogFacts(NamedTuple):
    """A summary of one log. `problem` is the reason that it cannot be read, in one sentence.

    Step time (the median) and samples per second are those of the last 50 steps, without warm-up, transition
    and recorded ones if there are others.
    """

    run: RunRow | None = None
    steps: int = 0
    # The newest step, and the newest one with the memory of live tensors.
    last: StepRow | None = None
    reading: StepRow | None = None
    step_ns: float | None = None
    samples_per_s: float | None = None
    # The number of steps that these two are of, and of the newest steps that were read.
    pace_steps: PaceSteps = PaceSteps(0, 0)
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    problem: str | None = None
    # The newest step in the log, observed or unobserved.
    logged_step: int | None = None
    # The number of these steps.
    logged_steps: int = 0
    # The totals up to the newest step.
    totals: LogTotals | None = None
    # The newest time in the log, of a step or a sample of the host, which go on within a long step. Only of a
    # run without a recorded end.
    last_t_ns: int | None = None

    @property
    def last_step(self) -> int | None:
        """The number of the newest step in the log."""
        return None if self.last is None else self.last.step


class _Stamp(NamedTuple):
    """The state of a log's files: inode and size of each, and the newest time of their contents."""

    files: tuple[int, ...]
    times_ns: tuple[int, ...]

    @property
    def newest_ns(self) -> int:
        return max(self.times_ns)


class _CachedFacts(NamedTuple):
    stamp: _Stamp
    is_settled: bool
    facts: LogFacts


class LogCache:
    """The facts of each log by its files' times and sizes, so that 200 ended runs take 200 stat calls."""

    def __init__(self) -> None:
        self._cache: dict[Path, _CachedFacts] = {}
        self._ends: dict[Path, tuple[_Stamp, str]] = {}

    def read(self, folder: RunFolder) -> LogFacts:
        """Return the facts of this run's log; read again only when its files have changed."""
        unchanged = self.unchanged(folder)
        if unchanged is not None:
            return unchanged
        # Taken before the log is read, so that concurrent writes are read next time.
        stamp = _stamp(folder.log)
        is_new = 0 <= time.time_ns() - stamp.newest_ns < _SETTLED_NS
        cached = self._cache.get(folder.path)
        before = None if cached is None or cached.stamp.files[0] != stamp.files[0] else cached.facts
        facts = read_log(folder.log, before)
        self._cache[folder.path] = _CachedFacts(stamp, not is_new or _is_over(facts), facts)
        return facts

    def unchanged(self, folder: RunFolder) -> LogFacts | None:
        """Return the cached facts while the log's files are unchanged; else None."""
        cached = self._cache.get(folder.path)
        if cached is None or not cached.is_settled or cached.stamp != _stamp(folder.log):
            return None
        return cached.facts

    def end_causes(self, folder: RunFolder, last_step: int, *, may_be_killed: bool) -> str:
        """Return what its log says about the end of a process after `last_step`, see `read_end_causes`. Read
        once as long as the log's files are unchanged."""
        stamp = _stamp(folder.log)
        end = self._ends.get(folder.path)
        if end is None or end[0] != stamp:
            causes = read_end_causes(folder.log, last_step, may_be_killed=may_be_killed, limit_s=_LIMIT_S)
            self._ends[folder.path] = end = stamp, causes
        return end[1]

    def forget(self, folder: RunFolder) -> None:
        """Drop what is cached of a deleted run."""
        self._cache.pop(folder.path, None)
        self._ends.pop(folder.path, None)


def read_log(path: Path, before: LogFacts | None = None) -> LogFacts:
    """Read the facts of the log at `path`; empty if it is missing, with a problem if it cannot be read.
    `before` are earlier facts of the same file: then only newer steps are read."""
    try:
        # At different moments the steps that the totals lack would be taken for missing ones, also later.
        with LogReader(path, total_limit_s=_LIMIT_S) as reader, reader.at_one_moment():
            run, extent, recent = reader.run(), reader.extent(), reader.recent_steps(RECENT_STEPS)
            totals = _totals(reader, extent, before)
            logged_step, logged_steps = _logged(reader, extent, totals)
            return LogFacts(
                run,
                extent.steps + max(0, (logged_step or 0) - (extent.last or 0)),
                recent[-1] if recent else None,
                newest_reading(recent),
                *_pace(recent),
                *_peaks(totals),
                None,
                logged_step,
                logged_steps,
                totals,
                None if run.ended_unix_ns is not None else _last_t_ns(reader, recent),
            )
    except LogMissingError:
        return LogFacts()
    except LogError as error:
        return LogFacts(problem=str(error))


def _last_t_ns(reader: LogReader, recent: Sequence[StepRow]) -> int | None:
    newest = [*recent[-1:], reader.latest_host_sample()]
    return max((row.t_ns for row in newest if row is not None), default=None)


def _totals(reader: LogReader, extent: StepExtent, before: LogFacts | None) -> LogTotals | None:
    """Return the totals of the log; None without a step."""
    if extent.first is None or extent.last is None:
        return None
    if before is not None and before.totals is not None and before.last is not None:
        last = before.last.step
        if 0 <= extent.last - last <= _MOST_NEW_STEPS:
            rows, *highest = reader.totals(last + 1, extent.last, _PEAKS)
            return _joined(before.totals, LogTotals(rows, tuple(highest)))
    rows = sum(reader.series(extent.first, extent.last, max_points=2, columns=()).column("rows"))
    return LogTotals(rows, reader.highest(extent.last, _PEAKS))


def _joined(one: LogTotals, two: LogTotals) -> LogTotals:
    highest = zip(one.highest, two.highest, strict=True)
    return LogTotals(
        one.rows + two.rows,
        tuple(max((value for value in pair if value is not None), default=None) for pair in highest),
    )


def _logged(reader: LogReader, extent: StepExtent, totals: LogTotals | None) -> tuple[int | None, int]:
    """Return the newest step in the log, observed or unobserved, and the number of such steps."""
    last, steps = reader.overhead.unobserved_extent()
    if totals is not None and extent.last is not None:
        steps += totals.rows
        last = extent.last if last is None else max(last, extent.last)
    return last, steps


def _pace(recent: Sequence[StepRow]) -> tuple[float | None, float | None, PaceSteps]:
    """Return the median step time in nanoseconds, the samples per second, and the steps that they are of."""
    steady = [row for row in recent if not row.flags & EXCLUDED_FLAGS]
    steps, rows = PaceSteps(len(steady), len(recent)), steady or recent
    elapsed_ns = sum(row.step_ns for row in rows)
    if not rows or elapsed_ns <= 0:
        return None, None, steps
    return statistics.median(row.step_ns for row in rows), samples_per_s(rows), steps


def _peaks(totals: LogTotals | None) -> tuple[int | None, int | None]:
    """Return the run's highest peaks, allocated and reserved. Allocated memory at the end of a step counts
    too, for steps without a peak."""
    if totals is None:
        return None, None
    allocated, reserved, at_step_end = totals.highest
    if allocated is not None and at_step_end is not None:
        allocated = max(allocated, at_step_end)
    return allocated, reserved


def _is_over(facts: LogFacts) -> bool:
    return facts.run is not None and facts.run.state in _OVER


def _stamp(log: Path) -> _Stamp:
    files: list[int] = []
    times_ns: list[int] = []
    for path in (str(log), f"{log}-wal"):
        try:
            status = os.stat(path)
        except OSError:
            files += [0, 0]
            times_ns.append(0)
        else:
            files += [status.st_ino, status.st_size]
            times_ns.append(status.st_mtime_ns)
    return _Stamp(tuple(files), tuple(times_ns))
