"""The end of this process, or of the thread that trains, as the end of a run of `stepscope.watch`."""

import atexit
import dis
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import NamedTuple, NoReturn

from harness.attach.active import active
from harness.attach.ending import ScriptStopped, UnknownExit
from harness.attach.launch import DISABLED_VARIABLE, report
from harness.attach.script_threads import reporting_threads
from harness.errors import INTERRUPTED_CODE
from harness.tracebacks import passes_on
from stepscope.notebook import in_notebook


class ProcessEnd:
    """Ends a run with the process, until `close`.

    Python hands an error to `sys.excepthook`, and keeps it as `sys.last_value` where the script has replaced
    that hook. Of a SystemExit it keeps nothing: whether the script ran to its end shows in the frame of its
    main module, and the exit code is that of the last call of `sys.exit`, see `ExitCalls`.
    """

    def __init__(self, end: Callable[[BaseException | None], None]) -> None:
        """`end` takes the error that ends the process; None: there is none."""
        self._end = end
        self._print_error, sys.excepthook = sys.excepthook, self._excepted
        atexit.register(self._exited)
        # A notebook catches what its cells raise.
        self._main = None if in_notebook() else _main_frame()
        self._earlier_error = _last_error()
        if self._main is not None:
            _EXITS.follow()
        self._threads = ExitStack()
        self._threads.enter_context(reporting_threads(end))

    def close(self, error: BaseException | None) -> None:
        """Leave the process as it was: the run has ended, by `error` if there was one. A stop that may end
        the process is still reported in one line. Idempotent."""
        atexit.unregister(self._exited)
        self._threads.close()
        self._main = self._earlier_error = None
        self._end = _ignore
        _EXITS.leave()
        in_flight = error or sys.exc_info()[1]  # As in a `finally` that closes the run.
        if sys.excepthook == self._excepted and not isinstance(in_flight, ScriptStopped):
            sys.excepthook = self._print_error

    def _excepted(self, _kind: object, error: BaseException, trace: TracebackType | None) -> None:
        """The last handler of an error: it ends the run, and is reported as ever; a stop in one line, with
        the exit code that it has under `stepscope run`."""
        is_outermost = sys.excepthook == self._excepted  # No hook of the script's goes on after this one.
        self._end(error.with_traceback(trace))
        report(error, self._print_error)
        if isinstance(error, ScriptStopped) and is_outermost and not _is_interactive():
            raise SystemExit(INTERRUPTED_CODE)

    def _exited(self) -> None:
        self._end(self._error_at_exit())

    def _error_at_exit(self) -> BaseException | None:
        if self._main is None or _has_returned(self._main):
            return None
        error, call = _last_error(), _EXITS.call
        if call is not None and not call.has_ended(self._main):
            call = None
        if error is not None and error is not (self._earlier_error if call is None else call.earlier_error):
            return error
        return UnknownExit() if call is None else call.error


class ExitCall(NamedTuple):
    """A call of `sys.exit` in the main thread, and the value of `sys.last_value` before it."""

    status: object
    earlier_error: BaseException | None
    # In the main module, which was executing it.
    instruction: int | None
    # Of the `except` that made the call.
    handled: BaseException | None

    @property
    def error(self) -> SystemExit:
        """The error that the call raised, with that of its handler as the cause of a failure."""
        error = SystemExit(self.status)
        if self.status:
            error.__cause__ = self.handled
        return error

    def has_ended(self, main: FrameType) -> bool:
        """Return whether the main module has ended by this call: unlike one that was caught before, it has
        left the module where it was called, or by a `finally` or `with` there."""
        return main.f_lasti == self.instruction or _name_of_last(main) == "RERAISE"


class ExitCalls:
    """The calls of `sys.exit`, which is wrapped from `follow` to `leave`.

    Attributes:
        call: the last one; None: there was none.
    """

    def __init__(self) -> None:
        self.call: ExitCall | None = None
        self._exit, self._recording_exit = sys.exit, self._record(sys.exit)

    def follow(self) -> None:
        """Wrap `sys.exit`, unless somebody else has."""
        if sys.exit is self._exit:
            sys.exit = self._recording_exit

    def leave(self) -> None:
        """Restore `sys.exit`. Idempotent."""
        self.call = None
        if sys.exit is self._recording_exit:
            sys.exit = self._exit

    def _record(self, leave: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(leave)
        def record(status: object = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                main = _main_frame()
                instruction = None if main is None else main.f_lasti
                self.call = ExitCall(status, _last_error(), instruction, _handled_by(sys._getframe(1)))
            leave(status)

        return record


# There is one `sys.exit`.
_EXITS = ExitCalls()


def follow_exits() -> None:
    """Follow the calls of `sys.exit`, unless Stepscope is disabled, or runs the script. From the import of
    `stepscope` on: `sys.exit(main())` reads `sys.exit` before `main` opens a run."""
    if os.environ.get(DISABLED_VARIABLE) != "1" and active() is None and not in_notebook():
        _EXITS.follow()


def error_passed_on() -> BaseException | None:
    """Return the error that a `finally` or `with` of a caller is passing on; None where an `except` has
    caught it, or there is none."""
    error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None or isinstance(error, GeneratorExit):
        return None
    frame = error.__traceback__.tb_frame  # The traceback has come as far as the frame that handles the error.
    return error if passes_on(frame.f_code, frame.f_lasti) else None


def _ignore(_error: BaseException | None) -> None:
    """Nothing is left to end."""


def _main_frame() -> FrameType | None:
    """Return the frame of the main module, while it runs."""
    names = vars(sys.modules["__main__"])
    frame, result = sys._current_frames().get(threading.main_thread().ident or 0), None
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            result = frame
        frame = frame.f_back
    return result


def _has_returned(frame: FrameType) -> bool:
    """Return whether a frame that has ended did so without an error."""
    return _name_of_last(frame).startswith("RETURN_")


def _name_of_last(frame: FrameType) -> str:
    """Return the name of the last instruction that a frame has executed."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _handled_by(frame: FrameType) -> BaseException | None:
    """Return the error that `frame` itself handles; None: there is none, or a caller of it does."""
    error = sys.exception()
    frames = traceback.walk_tb(None if error is None else error.__traceback__)
    return error if any(one is frame for one, _ in frames) else None


def _last_error() -> BaseException | None:
    return getattr(sys, "last_value", None)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.inspect or os.environ.get("PYTHONINSPECT"))
