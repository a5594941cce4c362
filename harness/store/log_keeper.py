"""Keeps a run's log writable: waits where waiting helps, begins a new log where it does not, and gives up in
the end. Every way is bounded, and training never hears of it.

Used by the writer's thread alone, but for `is_behind` and `has_given_up`.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import HomeError
from harness.records import RunRow
from harness.store.appender import LogAppender
from harness.store.faults import Blame, blame, reason
from harness.store.gap import Outage
from harness.store.log_files import LogFiles, damage
from harness.store.pending import Pending
from harness.store.renewal import Renewal, begin_anew

_LOGGER = logging.getLogger(__name__)
_LONGEST_BACK_OFF_S = 5.0
_MOST_DOUBLINGS = 10
# An unclear error (an I/O error, a table that is gone) is tried again for about eight seconds.
_MOST_UNCLEAR = 6
# A disk that damages the log again and again is not to fill up with damaged files.
_MOST_RENEWALS = 3
# What can be read of a damaged log is copied within this time; training goes on meanwhile, unwritten.
_RESCUE_S = 10.0
_CHECK_PERIOD_S = 1.0
# Files are missed for two checks before they count as deleted: an `rm -r` of the folder first removes them.
_CHECKS_WITHOUT_FILES = 2
# Between two checks of the files, as a multiple of what the first one took.
_LEAST_PAUSE = 10.0
# A write that takes longer than this means that rows pile up.
_SLOW_S = 1.0

# Hears since when the log is not written (unix nanoseconds, 0: it is), and why.
Report = Callable[[int, str], None]


def no_report(_since_unix_ns: int, _reason: str) -> None:
    """Report to nobody."""


class LogKeeper:
    """One run's log over all its files.

    Attributes:
        has_given_up: nothing is written any more.
    """

    def __init__(
        self,
        path: Path,
        run: RunRow,
        clock_ns: Callable[[], int],
        locate: Callable[[], Path | None],
        report: Report,
    ) -> None:
        """Create the log; raises HomeError when that cannot be. The arguments are those of `LogWriter`."""
        self.appender = LogAppender(path, run)
        self._path = path
        self._clock_ns = clock_ns
        self._locate = locate
        self._report = report
        self.has_given_up = False
        self._files = LogFiles.at(path)
        self._is_suspect = False
        self._damage_due_s = 0.0
        self._checks_without_files = 0
        self._check_due_s = 0.0
        self._renewals = 0
        self._failures = 0
        self._unclear = 0
        self._since_unix_ns = 0
        self._since_ns = 0
        self._began_s: float | None = None
        self._was_slow = False

    @property
    def is_behind(self) -> bool:
        """Whether rows pile up in memory because the log is not written."""
        began_s = self._began_s
        is_slow = began_s is not None and time.monotonic() - began_s > _SLOW_S
        return self._failures > 0 or self._was_slow or is_slow

    def pause_s(self, poll_s: float) -> float:
        """Seconds until the next write, longer after each that failed."""
        return (
            poll_s
            if not self._failures
            else max(poll_s, min(poll_s * 2.0**self._failures, _LONGEST_BACK_OFF_S))
        )

    def write(self, pending: Pending, durable: bool, is_over: Callable[[], bool]) -> bool:
        """Write everything that is pending; whether the log took it. `is_over`: there is no time for more."""
        self._begin()
        pending.gap.waiting_steps = max(pending.gap.waiting_steps, pending.steps)
        try:
            if not self.appender.is_open:
                self._reopen(self._locate() or self._path)
            pending.write_to(self.appender, self._clock_ns, durable)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError, HomeError, MemoryError) as error:
            self._refused(error, pending, is_over)
            return False
        finally:
            self._was_slow = self._began_s is not None and time.monotonic() - self._began_s > _SLOW_S
            self._began_s = None
            now = LogFiles.at(self._path)
            self._files = now if self._files.are_same(now) else self._files
        self._succeeded()
        return True

    def follow_files(self, pending: Pending, is_over: Callable[[], bool]) -> None:
        """Follow the log to another folder, and begin a new one when its files are gone or were written to.

        To be called before each write: SQLite would copy the hole in a write-ahead log that was cut short and
        then grew again into the log, without noticing.
        """
        if self.has_given_up or not self.appender.is_open:
            return
        if (why := self._foreign_damage()) is not None:
            self._renew(why, pending, is_over)
        elif time.monotonic() >= self._check_due_s:
            self._check_due_s = time.monotonic() + _CHECK_PERIOD_S
            self._check_files(pending, is_over)

    def _foreign_damage(self) -> str | None:
        """How somebody else damaged the files since the last write; None: not at all."""
        now = LogFiles.at(self._path)
        if not self._files.are_same(now):
            return None
        if self._files.were_cut(now):
            return "it was cut short"
        self._is_suspect = self._is_suspect or self._files.were_written(now)
        began_s = time.monotonic()
        if not self._is_suspect or began_s < self._damage_due_s:
            return None
        self._is_suspect, self._files = False, now
        found = damage(self._path)
        self._damage_due_s = time.monotonic() + _LEAST_PAUSE * (time.monotonic() - began_s)
        return found

    def _is_in_place(self) -> bool:
        return self._files.are_same(LogFiles.at(self._path))

    def _check_files(self, pending: Pending, is_over: Callable[[], bool]) -> None:
        path = self._locate()
        if path is None:
            return
        if path != self._path:
            self._follow(path)
        elif self._is_in_place():
            self._checks_without_files = 0
        else:
            self._checks_without_files += 1
            if self._checks_without_files >= _CHECKS_WITHOUT_FILES:
                self._renew("its files were deleted or replaced", pending, is_over, is_readable=True)

    def close(self) -> None:
        """Close the log. Idempotent."""
        path = self._locate()
        if path is None:
            self.appender.discard()
        elif path != self._path and self.appender.is_open:
            self._follow(path)  # Under its old name SQLite would not find the write-ahead log to remove.
        self.appender.close()

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        if not self._since_unix_ns:
            self._since_unix_ns, self._since_ns = time.time_ns(), self._clock_ns()
            self._report(self._since_unix_ns, "")

    def _succeeded(self) -> None:
        if self._failures:
            _LOGGER.warning("The log is written again.")
        self._failures = self._unclear = self._since_unix_ns = 0
        self._report(0, "")

    def _refused(self, error: Exception, pending: Pending, is_over: Callable[[], bool]) -> None:
        why = reason(error)
        if self._failures == 0:
            _LOGGER.warning("The log cannot be written (%s); trying again.", why)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        self._report(self._since_unix_ns, why)
        pending.gap.outage = Outage(self._since_ns, why)
        match blame(error):
            case Blame.DISK:
                self._unclear = 0
            case Blame.FILE:
                self._renew(why, pending, is_over)
            case _:
                self._unclear += 1
                if self._unclear >= _MOST_UNCLEAR:
                    self._renew(why, pending, is_over)

    def _renew(
        self, why: str, pending: Pending, is_over: Callable[[], bool], is_readable: bool = False
    ) -> None:
        if self._renewals >= _MOST_RENEWALS:
            self._give_up(why)
            return
        ends_s = time.monotonic() + _RESCUE_S
        written = self.appender.steps_written
        try:
            renewal = begin_anew(
                self._path,
                self.appender,
                is_readable,
                pending.last_step,
                lambda: 0.0 if is_over() else ends_s - time.monotonic(),
            )
        except (sqlite3.Error, HomeError, OSError) as error:
            _LOGGER.warning("No new log could be begun (%s); trying again.", reason(error))
            self._failures = max(self._failures, 1)
            return
        self._renewals += 1
        self._unclear = self._checks_without_files = 0
        self._files = LogFiles.at(self._path)
        pending.gap.missing_steps += renewal.missing_steps
        pending.gap.renewals.append(_sentence(why, written, renewal))
        _LOGGER.warning("%s", pending.gap.renewals[-1])

    def _give_up(self, why: str) -> None:
        self.has_given_up = True
        since = self._since_unix_ns or time.time_ns()
        text = f"it was given up after {_MOST_RENEWALS} new logs ({why})"
        self._report(since, text)
        _LOGGER.error("The log is written no more: %s. Training goes on.", text)

    def _follow(self, path: Path) -> None:
        try:
            self._reopen(path)
        except (sqlite3.Error, HomeError) as error:
            _LOGGER.warning("The log cannot be opened at %s: %s.", path, reason(error))

    def _reopen(self, path: Path) -> None:
        self.appender.reopen(path)
        self._path, self._files = path, LogFiles.at(path)
        self._checks_without_files = 0


def _sentence(why: str, written: int, renewal: Renewal) -> str:
    missing = f"of {written:,} steps in it {renewal.missing_steps:,} could not be read back"
    if not renewal.missing_steps:
        missing = f"all {written:,} steps in it could be read back"
    kept = "" if renewal.set_aside is None else f" The old file is kept as {renewal.set_aside}."
    return f"The log was begun anew ({why}): {missing}.{kept}"
