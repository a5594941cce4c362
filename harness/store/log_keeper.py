"""Maintains a writable log: retries when that helps, else begins a new log, and finally gives up. Everything
is bounded, and training is not affected.

Only for the writer's thread, except `is_behind` and `has_given_up`.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import HomeError
from harness.records.run import RunRow
from harness.store.appender import LogAppender
from harness.store.error_causes import Blame, blame, reason
from harness.store.gap import Outage
from harness.store.log_files import LogFiles, damage
from harness.store.outbox import Outbox
from harness.store.pending import Pending
from harness.store.renewal import Renewal, begin_anew
from harness.store.safe_logger import SafeLogger

_LOGGER = SafeLogger(logging.getLogger(__name__))
_LONGEST_BACK_OFF_S = 5.0
_MOST_DOUBLINGS = 10
# An unclear error (an I/O error, a missing table) is retried for about eight seconds.
_MOST_UNCLEAR = 6
# A disk that damages every log must not fill up with damaged files.
_MOST_RENEWALS = 3
# A damaged log is recovered for at most this time; training continues, with rows in memory.
_RESCUE_S = 10.0
_CHECK_PERIOD_S = 1.0
# Files must be missing in two checks to count as deleted: an `rm -r` of the folder removes them first.
_CHECKS_WITHOUT_FILES = 2
# Pause between two checks for damage, as a multiple of the duration of the first.
_LEAST_PAUSE = 10.0

# Takes the start of the outage (unix nanoseconds, 0: none) and its reason.
OutageReport = Callable[[int, str], None]


def no_report(_since_unix_ns: int, _reason: str) -> None:
    """Ignore the report."""


class LogKeeper:
    """One run's log over all its files.

    Attributes:
        has_given_up: True when the log is no longer written.
    """

    def __init__(
        self,
        path: Path,
        run: RunRow,
        clock_ns: Callable[[], int],
        locate: Callable[[], Path | None],
        report: OutageReport,
        outbox: Outbox,
        *,
        may_exist: bool = False,
    ) -> None:
        """Create the log; raises HomeError if that fails. The arguments are those of `LogWriter`, and
        `may_exist` that of `LogAppender`."""
        self.appender = LogAppender(path, run, may_exist=may_exist)
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
        # Of the last attempts at a new log; empty: they succeeded. A message for each would fill the script's
        # stderr.
        self._renewal_failure = ""
        self._outbox = outbox
        self._unclear = 0
        self._since_unix_ns = 0
        self._since_ns = 0

    def pause_s(self, poll_s: float) -> float:
        """Return the seconds until the next write, longer after each failure."""
        return (
            poll_s
            if not self._outbox.failures
            else max(poll_s, min(poll_s * 2.0**self._outbox.failures, _LONGEST_BACK_OFF_S))
        )

    def write(self, pending: Pending, durable: bool, is_over: Callable[[], bool]) -> bool:
        """Write everything that is pending; return whether that succeeded. `is_over`: the time is up."""
        self._begin()
        pending.gap.waiting_steps = max(pending.gap.waiting_steps, pending.steps)
        try:
            if not self.appender.is_open:
                self._reopen(self._locate() or self._path)
            pending.write_to(self.appender, self._clock_ns, durable)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError, HomeError, MemoryError) as error:
            self._handle_error(error, pending, is_over)
            return False
        finally:
            self._outbox.was_slow, self._outbox.began_s = self._outbox.is_slow(), None
            now = LogFiles.at(self._path)
            self._files = now if self._files.are_same(now) else self._files
        self._succeeded()
        return True

    def follow_files(self, pending: Pending, is_over: Callable[[], bool]) -> None:
        """Follow a renamed folder, and begin a new log when its files are missing or were changed.

        Call this before each write: from a write-ahead log that was truncated and then grew again, SQLite
        would copy the hole into the log without an error.
        """
        if self.has_given_up or not self.appender.is_open:
            return
        if (why := self._foreign_damage()) is not None:
            self._renew(why, pending, is_over)
        elif time.monotonic() >= self._check_due_s:
            self._check_due_s = time.monotonic() + _CHECK_PERIOD_S
            self._check_files(pending, is_over)

    def _foreign_damage(self) -> str | None:
        """Return the damage by another program since the last write, None without damage."""
        now = LogFiles.at(self._path)
        if not self._files.are_same(now):
            return None
        if self._files.were_cut(now):
            return "it was truncated"
        self._is_suspect = self._is_suspect or self._files.were_written(now)
        began_s = time.monotonic()
        if not self._is_suspect or began_s < self._damage_due_s:
            return None
        self._is_suspect, self._files = False, now
        problem = damage(self._path)
        self._damage_due_s = time.monotonic() + _LEAST_PAUSE * (time.monotonic() - began_s)
        return problem

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
            self._follow(path)  # SQLite would not find the write-ahead log under the old name.
        self.appender.close()

    def _begin(self) -> None:
        self._outbox.began_s = time.monotonic()
        if not self._since_unix_ns:
            self._since_unix_ns, self._since_ns = time.time_ns(), self._clock_ns()
            self._report(self._since_unix_ns, "")

    def _succeeded(self) -> None:
        if self._outbox.failures:
            _LOGGER.warning("The log is written again.")
        self._outbox.failures = self._unclear = self._since_unix_ns = 0
        self._renewal_failure = ""
        self._report(0, "")

    def _handle_error(self, error: Exception, pending: Pending, is_over: Callable[[], bool]) -> None:
        why = reason(error)
        if self._outbox.failures == 0:
            _LOGGER.warning("The log cannot be written (%s); retrying.", why)
        self._outbox.failures = min(self._outbox.failures + 1, _MOST_DOUBLINGS)
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
            if self._renewal_failure != reason(error):
                self._renewal_failure = reason(error)
                _LOGGER.warning("No new log could be created (%s); retrying.", self._renewal_failure)
            self._outbox.failures = max(self._outbox.failures, 1)
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
        _LOGGER.error("The log is no longer written: %s. Training continues.", text)

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
    missing = f"{renewal.missing_steps:,} of its {written:,} steps could not be recovered"
    if not renewal.missing_steps:
        missing = f"all of its {written:,} steps were recovered"
    old = "" if renewal.set_aside is None else f" The old file was renamed to {renewal.set_aside}."
    return f"A new log was created ({why}): {missing}.{old}"
