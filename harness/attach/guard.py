"""The fail-open point of a script's process: whatever fails in the watch, the script goes on without it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ReferenceType, ref

from harness.errors import StepscopeError
from harness.notices import print_notice, print_traceback

_NOBODY = 0
_NO_MEMORY = "There was no memory left for a part of what is recorded at the end of the run."


class ScriptGuard:
    """Runs parts of the watch until the first of them fails. Nothing that the script does runs under it.

    Attributes:
        is_on: False once something has failed, or `leave` was called.
        message: the sentence about what has failed; None: nothing has.
        thread: the identifier of the thread that is followed; None: any, before training has begun.
    """

    __slots__ = ("_claimed_by", "_claiming", "_suspended", "is_on", "message", "report", "thread")

    def __init__(self) -> None:
        self.is_on = True
        self.message: str | None = None
        self.thread: int | None = None
        self._claiming = threading.Lock()
        self._claimed_by: ReferenceType[threading.Thread] | None = None
        # The thread of `suspend`, and what `thread` was before.
        self._suspended: tuple[int, int | None] | None = None
        # Called with the error, which it reports in the log.
        self.report: Callable[[str], None] = _ignore

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        return self.is_on and self.thread in (None, threading.get_ident())

    def claim(self) -> bool:
        """Follow the calling thread from now on, unless another one is followed; return whether it is."""
        with self._claiming:
            if self.follows():
                self.thread = threading.get_ident()
                self._claimed_by = ref(threading.current_thread())
                return True
            return False

    def is_claimed_by(self, thread: threading.Thread | None) -> bool:
        """Return whether `thread` is the followed one, and not another one that has its identifier since it
        has ended."""
        return thread is not None and self._claimed_by is not None and self._claimed_by() is thread

    def suspend(self) -> None:
        """Follow no thread until `resume`; called on the followed one."""
        self._suspended = threading.get_ident(), self.thread
        self.thread = _NOBODY

    def has_suspended(self) -> bool:
        """Return whether the calling thread was followed before `suspend`."""
        return self._suspended is not None and self._suspended[0] == threading.get_ident()

    @property
    def is_watching(self) -> bool:
        """Return whether nothing has failed, and nothing is suspended."""
        return self.is_on and self._suspended is None

    def resume(self) -> None:
        """Follow the thread of before `suspend` again."""
        if self._suspended is not None:
            if self.is_on:
                self.thread = self._suspended[1]
            self._suspended = None

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `function` returns. None if the guard is off, and after an error, which is handled as
        `failed` does."""
        if not self.is_on:
            return None
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001  # the fail-open point of a script's process
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Print `error`, with its traceback if nobody raised it on purpose, and turn the guard off; an error
        in that is printed too. A MemoryError ends the script itself, and is raised again."""
        if isinstance(error, MemoryError):
            raise error
        if isinstance(error, StepscopeError):
            self.message = f"{error} The script goes on without Stepscope."
            print_notice(self.message)
        else:
            self.message = f"{type(error).__name__}: {error}; the script goes on without Stepscope."
            print_traceback(error)
        self.leave()
        try:
            self.report(self.message)
        except Exception as another:  # noqa: BLE001  # such as that of the same part, where it is undone
            print_traceback(another)

    def leave(self) -> None:
        """Run nothing any more."""
        self.is_on, self.thread = False, _NOBODY


class EndingGuard(ScriptGuard):
    """Runs parts of the end of a watch. The script is over, and its own error and exit code are to be
    reported: nothing is raised."""

    __slots__ = ()

    def failed(self, error: Exception) -> None:
        """Like that of a running script, also for a MemoryError."""
        if not isinstance(error, MemoryError):
            super().failed(error)
            return
        self.message = _NO_MEMORY
        with suppress(MemoryError):
            print_notice(_NO_MEMORY)
        self.leave()


def _ignore(_message: str) -> None:
    """Without a log there is nowhere to report to."""
