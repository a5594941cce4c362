"""Every error Stepscope raises on purpose, and the exit code each one ends the shell command with.

StepscopeError                    exit 1: something failed
├── UsageError                    exit 2: what was asked for cannot be done; nothing was started
│   ├── SettingError              one setting's value is unknown, out of bounds or does not fit the others
│   │   └── AbsentDeviceError     the device that is named is not there
│   └── UnknownRunError           no run of that id or name
├── HomeError                     the home folder cannot be used (read-only, a network file system, …)
├── LogError                      a run's log cannot be read
│   ├── LogMissingError           no log there (yet)
│   ├── LogForeignError           an SQLite file that is not a Stepscope log, or not SQLite at all
│   ├── LogNewerError             written by a newer Stepscope
│   └── LogDamagedError           truncated or corrupt
├── RunStateError                 the run is not in a state in which this can be done
├── ReadOnlyError                 the dashboard shows runs and changes none
└── DeviceError                   a device is gone, busy or cannot do what was asked

Every message is one sentence for a person: what happened, with the value, and what to do next.
"""

READ_ONLY = (
    "This dashboard is read-only: it shows runs and changes nothing. To control runs, start one without "
    "--read-only."
)


class StepscopeError(Exception):
    """Something failed; the message says what and what to do. Ends a shell command with exit code 1."""

    exit_code = 1


class UsageError(StepscopeError):
    """What was asked for cannot be done as asked. Ends a shell command with exit code 2."""

    exit_code = 2


class SettingError(UsageError):
    """A setting has a value it cannot have.

    Attributes:
        setting: the setting's name, as in `harness.config.Settings`.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class AbsentDeviceError(SettingError):
    """The device that is named is not there."""

    def __init__(self, message: str) -> None:
        super().__init__("device", message)


class UnknownRunError(UsageError):
    """No run has this id or name."""


class HomeError(StepscopeError):
    """The home folder cannot be used."""


class LogError(StepscopeError):
    """A run's log cannot be read."""


class LogMissingError(LogError):
    """There is no log at that place (yet)."""


class LogForeignError(LogError):
    """The file is not a Stepscope log."""


class LogNewerError(LogError):
    """The log was written by a newer version of Stepscope."""


class LogDamagedError(LogError):
    """The log is truncated or corrupt."""


class RunStateError(StepscopeError):
    """The run is not in a state in which this can be done."""


class ReadOnlyError(StepscopeError):
    """The dashboard shows runs and changes none."""

    def __init__(self) -> None:
        super().__init__(READ_ONLY)


class DeviceError(StepscopeError):
    """A device is gone, busy, or cannot do what was asked of it."""
