"""Ctrl-C in a server's process while it imports what it serves, which takes a second."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED_CODE = 130


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the context, Ctrl-C ends the process without a traceback; also one that came earlier, which
    `harness.cli.serving.become` blocked. Ctrl-C that is ignored (nohup) stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED_CODE))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
