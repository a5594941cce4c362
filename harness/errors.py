"""Every error Stepscope raises on purpose, and the exit code each one ends the shell command with.

StepscopeError                    exit 1: something failed
├── UsageError                    exit 2: the request cannot be fulfilled; nothing was started
│   ├── SettingError              the value of one setting is unknown, out of bounds or in conflict
│   │   └── AbsentDeviceError     the named device does not exist
│   └── UnknownRunError           no run of that id or name
├── HomeError                     the home folder is unusable (read-only, a network file system, …)
│   └── HomeFullError             its disk is full, or a file is locked: it may be usable later
├── LogError                      the log of a run is unreadable
│   ├── LogMissingError           there is no log (yet)
│   ├── LogForeignError           the file is not a Stepscope log, or not SQLite at all
│   ├── LogNewerError             written by a newer Stepscope
│   └── LogDamagedError           truncated or corrupt
├── RunStateError                 the run's state does not allow the request
├── MissingLibraryError           an optional library is not installed
├── ReadOnlyError                 a read-only dashboard cannot change a run
└── DeviceError                   a device is lost, busy or unable to do what was requested

Every message is one sentence: what happened, with the value, and what to do next.
"""

from pathlib import Path
from traceback import TracebackException

READ_ONLY = (
    "This dashboard is read-only: it shows runs and changes nothing. To control runs, start one without "
    "--read-only."
)


# Of a shell command that Ctrl-C ended: 128 and the number of SIGINT.
INTERRUPTED_CODE = 130
# Of a run that ran out of memory, and of a prediction that a run does not fit.
OUT_OF_MEMORY_CODE = 3


def text_of(error: BaseException) -> str:
    """Return the text of an error, as `str` does, with half characters spelled out, which no log can hold;
    also of an error of a script that has none to give."""
    return str(TracebackException(type(error), error, None)).encode("utf-8", "backslashreplace").decode()


class StepscopeError(Exception):
    """Something failed; the message says what to do. Ends a shell command with exit code 1."""

    exit_code = 1


class UsageError(StepscopeError):
    """The request cannot be fulfilled. Ends a shell command with exit code 2."""

    exit_code = 2


class SettingError(UsageError):
    """The value of a setting is not allowed.

    Attributes:
        setting: the setting's name, as in `harness.settings.Settings`.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class AbsentDeviceError(SettingError):
    """The named device does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__("device", message)


class UnknownRunError(UsageError):
    """No run has this id or name."""


class HomeError(StepscopeError):
    """The home folder cannot be used."""


class HomeFullError(HomeError):
    """A file of the home cannot be written for `reason`, a clause; later it may be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be written: {reason}; free space if its disk is full, and try again."
        )
        self.reason = reason


class LogError(StepscopeError):
    """A run's log cannot be read."""


class LogMissingError(LogError):
    """There is no log at that path (yet)."""


class LogForeignError(LogError):
    """The file is not a Stepscope log."""


class LogNewerError(LogError):
    """The log was written by a newer version of Stepscope."""


class LogDamagedError(LogError):
    """The log is truncated or corrupt."""


class RunStateError(StepscopeError):
    """The run's state does not allow the request."""


class MissingLibraryError(StepscopeError):
    """A library of one of Stepscope's extras is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; install it: pip install 'stepscope[{extra}]'")


class ReadOnlyError(StepscopeError):
    """A read-only dashboard cannot change a run."""

    def __init__(self) -> None:
        super().__init__(READ_ONLY)


class DeviceError(StepscopeError):
    """A device is lost, busy, or unable to do what was requested."""
