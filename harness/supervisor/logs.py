"""What a run's log says about it as a whole, kept until the log's files change."""

from pathlib import Path
from typing import NamedTuple

from harness.errors import LogError, LogMissingError
from harness.records import RunRow, StepFlag, StepRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader, StepExtent

RECENT_STEPS = 50
# Of a list of runs each waits for all others; the facts of ten million steps take milliseconds.
_LIMIT_S = 5.0
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
_LEVELS = ("allocated_bytes",)
_ODD = StepFlag.WARM_UP | StepFlag.TRANSITION | StepFlag.PROFILED


class LogFacts(NamedTuple):
    """One log in short. `problem` is why it cannot be read, in one sentence."""

    run: RunRow | None = None
    steps: int = 0
    recent: tuple[StepRow, ...] = ()
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    problem: str | None = None

    @property
    def last_step(self) -> int | None:
        """The newest step in the log."""
        return self.recent[-1].step if self.recent else None

    @property
    def calm(self) -> tuple[StepRow, ...]:
        """The recent steps that statistics may use: not warm-up, transition or profiled, unless all are."""
        return tuple(row for row in self.recent if not row.flags & _ODD) or self.recent


class LogCache:
    """The facts of each log by its files' times and sizes, so that 200 ended runs cost 200 stats."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], LogFacts]] = {}

    def read(self, folder: RunFolder) -> LogFacts:
        """The facts of this run's log; read again only when its files have changed."""
        stamp = _stamp(folder.log)
        known = self._known.get(folder.path)
        if known is not None and known[0] == stamp:
            return known[1]
        facts = read_log(folder.log)
        self._known[folder.path] = (stamp, facts)
        return facts

    def forget(self, folder: RunFolder) -> None:
        """Drop what is known of a run that is no more."""
        self._known.pop(folder.path, None)


def read_log(path: Path) -> LogFacts:
    """The facts of the log at `path`; none when it is missing, and a problem when it cannot be read."""
    try:
        with LogReader(path, total_limit_s=_LIMIT_S) as reader:
            extent, recent = reader.extent(), tuple(reader.last_steps(RECENT_STEPS))
            return LogFacts(reader.run(), extent.steps, recent, *_peaks(reader, extent))
    except LogMissingError:
        return LogFacts()
    except LogError as error:
        return LogFacts(problem=str(error))


def _peaks(reader: LogReader, extent: StepExtent) -> tuple[int | None, int | None]:
    """The run's highest peaks, allocated and reserved. Where the peak could not be read any more, what was
    still allocated at the end of a step was reached too."""
    if extent.first is None or extent.last is None:
        return None, None
    whole = reader.series(extent.first, extent.last, max_points=2, columns=(*_PEAKS, *_LEVELS))
    allocated, reserved, level = (
        max((v for v in whole.column(f"{name}_max") if v is not None), default=None)
        for name in (*_PEAKS, *_LEVELS)
    )
    if allocated is not None and level is not None:
        allocated = max(allocated, level)
    return allocated, reserved


def _stamp(log: Path) -> tuple[int, ...]:
    stamp: list[int] = []
    for path in (log, log.with_name(log.name + "-wal")):
        try:
            stat = path.stat()
        except OSError:
            stamp += [0, 0, 0]
        else:
            stamp += [stat.st_ino, stat.st_mtime_ns, stat.st_size]
    return tuple(stamp)
