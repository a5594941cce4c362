"""Signals to a run's processes, each sent only after the process has been identified."""

import os
import signal
from collections.abc import Callable

from harness.errors import RunStateError
from harness.identity import handles_signal, is_running, read_identity
from harness.store.folder import RunFolder

Kill = Callable[[int, int], None]
"""As `os.kill`: a negative pid means its whole group."""


def signal_run(folder: RunFolder, number: signal.Signals, kill: Kill = os.kill) -> bool:
    """Signal the run's process and the workers in its group; False when the process is no longer there.

    A pid that now belongs to somebody else is left alone. Raises RunStateError when it may not be signalled.
    """
    identity = read_identity(folder.process)
    if identity is None or not is_running(identity):
        return False
    try:
        leads_group = os.getpgid(identity.pid) == identity.pid
        kill(-identity.pid if leads_group else identity.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise RunStateError(
            f"Process {identity.pid} of run {folder.run_id} belongs to another user; stop it as that user."
        ) from None
    return True


def ask_for_stacks(folder: RunFolder, kill: Kill = os.kill) -> bool:
    """Have the process write its threads' stacks to its output; False when it cannot be asked.

    SIGUSR1 ends a process without a handler for it, so it goes only to one that has one.
    """
    identity = read_identity(folder.process)
    if identity is None or not is_running(identity) or not handles_signal(identity.pid, signal.SIGUSR1):
        return False
    try:
        kill(identity.pid, signal.SIGUSR1)
    except (ProcessLookupError, PermissionError):
        return False
    return True
