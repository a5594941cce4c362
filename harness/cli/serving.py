"""The replacement of this process by a server."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from harness.errors import StepscopeError


def become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Execute the server's command in this process. Ctrl-C waits until the server has a handler
    (`dashboard.interrupts`): Python prints a traceback before. Raises StepscopeError if that fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.execve(command[0], list(command), environ)
    except OSError as error:
        raise StepscopeError(f"The server could not be started: {error.strerror}.") from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
