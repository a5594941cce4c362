"""Ctrl-C in a server's process before the server has a handler of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED_CODE = 130


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the context, Ctrl-C ends the process without a traceback, until the server handles it; also one
    that came earlier, which `harness.cli.serving.become` blocked. Ctrl-C that is ignored (nohup) stays
    ignored.

    A KeyboardInterrupt would not do: what the server imports as it starts, uvloop for one, is in part C code
    that can drop exceptions, and the server would run on.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(_INTERRUPTED_CODE))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
