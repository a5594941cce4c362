"""The ways in which a script under watch ends."""

from harness.errors import StepscopeError


class ScriptStopped(KeyboardInterrupt):
    """Raised between two steps of a script when a person stops the run: as on Ctrl-C, the script's own
    clean-up runs."""


class ScriptExitError(StepscopeError):
    """The script called `sys.exit` with a code other than 0."""
