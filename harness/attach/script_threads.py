"""Threads that a script starts: the error that ends one, and those that outlive its main module."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.attach.active import active
from harness.attach.ending import ScriptStopped
from harness.attach.guard import ScriptGuard
from harness.notices import print_notice
from harness.tracebacks import leave_out_own_frames


@contextmanager
def reporting_threads(end: Callable[[BaseException], None]) -> Iterator[None]:
    """Until the context ends, an error that ends a thread is printed as without Stepscope, and a stop in one
    line; `end` takes the one of the thread that trains. A script's own threading.excepthook takes the place
    of this one."""
    print_error = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        error, attachment = arguments.exc_value, active()
        is_training = attachment is not None and attachment.trains_in(arguments.thread)
        # A SystemExit has no effect in a thread, and after a stop the script's clean-up may go on elsewhere.
        if isinstance(error, Exception) and is_training:
            ScriptGuard().run(end, error)
        if isinstance(error, ScriptStopped):
            print_notice(str(error))
            return
        trace = arguments.exc_traceback
        if error is not None:
            trace = leave_out_own_frames(error).__traceback__
        kind, thread = arguments.exc_type, arguments.thread
        print_error(threading.ExceptHookArgs((kind, error, trace, thread)))

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = print_error


def wait_for_threads() -> KeyboardInterrupt | None:
    """Wait for the threads of the script that are no daemons, as Python does at the end of the main module:
    one may train. Return the Ctrl-C that ends the wait, if any.

    Those of executors are left out: they end as Python shuts down.
    """
    try:
        while threads := _others():
            threads[0].join()
    except KeyboardInterrupt as error:
        return error
    return None


def _others() -> list[threading.Thread]:
    """The other threads that Python waits for, without those of executors."""
    executors = sys.modules.get("concurrent.futures.thread")
    left_out = {threading.current_thread(), *getattr(executors, "_threads_queues", ())}
    return [one for one in threading.enumerate() if not one.daemon and one not in left_out]
