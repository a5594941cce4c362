"""The fail-open point of a script's process: whatever fails in the watch, the script goes on without it."""

import traceback
from collections.abc import Callable
from typing import Any


class ScriptGuard:
    """Runs parts of the watch until the first of them fails. Nothing that the script does runs under it.

    Attributes:
        is_on: False once something has failed, or `leave` was called.
        message: the sentence about what has failed; None: nothing has.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.message: str | None = None
        # Called with the error, which it reports in the log.
        self.report: Callable[[str], None] = _ignore

    def run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function`, unless the guard is off. An error in it prints its traceback and turns the guard
        off; memory that runs out is the script's own end, and is raised."""
        if not self.is_on:
            return
        try:
            function(*arguments)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # the fail-open point of a script's process
            traceback.print_exception(error)
            self.is_on = False
            self.message = f"{type(error).__name__}: {error}; the script goes on without Stepscope."
            self.report(self.message)

    def leave(self) -> None:
        """Run nothing any more."""
        self.is_on = False


def _ignore(_message: str) -> None:
    """Without a log there is nowhere to report to."""
