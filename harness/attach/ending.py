"""The ways in which a script under watch ends."""

import sys
from typing import Any, NamedTuple

from harness import words
from harness.errors import StepscopeError, text_of
from harness.records.run import RunState

# Modules that are imported once a process is started by multiprocessing.
_PROCESS_MODULES = frozenset({"multiprocessing.popen_fork", "multiprocessing.popen_forkserver"})
_INTERRUPTED = "Stopped by Ctrl-C."


class ScriptStopped(KeyboardInterrupt):
    """Raised between two steps of a script when a person stops the run: as on Ctrl-C, the script's own
    clean-up runs."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows below the cell, in place of a traceback."""
        return [f"stepscope: {self}"]


def caught_stop(step: int) -> str:
    """Return the warning about a script that goes on after `step`, although it was stopped."""
    return (
        f"The script caught the KeyboardInterrupt of the stop and goes on: it has taken step {step:,}. "
        "Stop it again: if it catches that too, its process is terminated."
    )


class UnknownExit(SystemExit):
    """Stands for a SystemExit with an unknown code."""


class NextWatch(SystemExit):
    """Stands for the next `stepscope.watch` of a script, which ends the run of the one before."""


class ScriptExitError(StepscopeError):
    """The script called `sys.exit` with a code other than 0."""


class Ending(NamedTuple):
    """The end of a script: what it raised, and the sentence for an end without an error."""

    error: BaseException | None
    state: RunState
    message: str


def ending_of(
    error: BaseException | None,
    steps: int,
    failure: str | None = None,
    is_stopped: bool = False,
    has_trained: bool = False,
    has_other_thread: bool = False,
) -> Ending:
    """Return the end that a script's error makes; None: it ran to its end after `steps` steps. `failure` is
    the sentence about an error of the watch. If the script `is_stopped`, or exits as it handles Ctrl-C, its
    exit code is no failure: Lightning exits with 1 when it is interrupted. `has_trained` is whether it has
    called backward(), `has_other_thread` whether an optimizer stepped in a thread that is not followed."""
    if isinstance(error, UnknownExit) and not is_stopped:
        message = "The script raised SystemExit itself, not by sys.exit: its exit code is not known."
        return Ending(None, RunState.STOPPED, message)
    is_followed = isinstance(error, NextWatch)
    if isinstance(error, SystemExit):
        code = int(error.code or 0) if isinstance(error.code, int | None) else error.code
        if code != 0 and not is_stopped:
            if isinstance(error.__context__, KeyboardInterrupt):
                return Ending(None, RunState.STOPPED, _INTERRUPTED)
            exit_error = ScriptExitError(f"The script exited with {code!r}.")
            exit_error.__cause__ = error  # It may be the end of a handler of an error of memory.
            return Ending(exit_error.with_traceback(error.__traceback__), RunState.FAILED, str(exit_error))
        error = None
    if (stop := _stop_by(error)) is not None:
        return Ending(None, RunState.STOPPED, stop)
    if error is not None:
        return Ending(error, RunState.FAILED, text_of(error))
    if failure is not None:
        return Ending(None, RunState.FINISHED, f"The script ended. It was not followed to its end: {failure}")
    if is_followed:
        when = f"after {words.plural(steps, 'step')}" if steps else "before its first step"
        return Ending(None, RunState.FINISHED, f"The next stepscope.watch ended this run {when}.")
    if steps:
        return Ending(None, RunState.FINISHED, f"The script ended after {words.plural(steps, 'step')}.")
    return Ending(None, RunState.FINISHED, _without_steps(has_trained, has_other_thread))


def _stop_by(error: BaseException | None) -> str | None:
    """Return the sentence about an error with which a person stops a script; None for any other."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if _is_of("bdb", "BdbQuit", error):
        return "Stopped by quitting the debugger."
    if _is_of("asyncio", "CancelledError", error):
        return "Stopped as its asyncio task was cancelled, which Ctrl-C does too."
    return None


def _is_of(module: str, name: str, error: BaseException | None) -> bool:
    """Return whether `error` is of a class of the standard library."""
    # Not imported here: most scripts have no such module. It may be one of the script's own.
    kind: Any = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)


def _without_steps(has_trained: bool, has_other_thread: bool) -> str:
    if has_other_thread:
        missing = "an optimizer stepped only in another thread, which is not followed"
    elif has_trained:
        missing = "backward() was called, but no optimizer stepped"
    elif _PROCESS_MODULES.isdisjoint(sys.modules):
        missing = "no optimizer stepped, and backward() was not called"
    else:
        return "The script ended without a step of its own; processes that it starts are not followed."
    return f"The script ended before its first step: {missing}."
