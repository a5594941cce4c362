"""Signals to a run's processes: the only module that sends any, each after identifying the process.

A pid can be reused between the check and the signal. A pidfd (Linux 5.3) prevents that: it is opened first,
then the process is identified, and the signal goes to the process of the pidfd. Linux 6.9 accepts a pidfd for
a process group too. Elsewhere the signal follows the check immediately.
"""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from harness.errors import RunStateError
from harness.identity import handles_signal
from harness.store.folder import RunFolder
from harness.supervisor.processes import RunProcess, find_process, refusal

STACKS_MARK = "stacks-requested"

# PIDFD_SIGNAL_PROCESS_GROUP, pidfd_send_signal(2); Python has no name for it.
_TO_GROUP = 1 << 2

# Identifies the process of a run, as `find_process`.
Find = Callable[[RunFolder], RunProcess | None]


def signal_run(folder: RunFolder, number: signal.Signals, find: Find = find_process) -> bool:
    """Signal the run's process and the workers in its group; return False if there is no visible process.

    A script is signaled alone: other programs of its shell may be in its group, as in `… train.py | tee log`.

    Raises RunStateError, with the reason, when the process must not be signaled.
    """
    return _signal(folder, number, find, to_group=folder.request().script is None)


def _signal(folder: RunFolder, number: signal.Signals, find: Find, to_group: bool) -> bool:
    process = find(folder)
    if process is None or process.pid is None:
        return False
    pid = process.pid
    descriptor = _open_pidfd(pid)
    try:
        if not _is_same(find(folder), process):
            return False
        reason = refusal(folder, pid)
        if reason is not None:
            raise RunStateError(reason)
        is_leader = to_group and os.getpgid(pid) == pid
        _send(pid, descriptor, number, is_leader)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise RunStateError(
            f"Process {pid} of run {folder.run_id} may not be signaled by this user; stop it as its owner."
        ) from None
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _is_same(now: RunProcess | None, before: RunProcess) -> bool:
    return now is not None and (now.pid, now.start_ticks) == (before.pid, before.start_ticks)


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd of the process; None if the system has none, or the process has ended."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _send(pid: int, descriptor: int | None, number: signal.Signals, to_group: bool) -> None:
    if descriptor is not None:
        try:
            signal.pidfd_send_signal(descriptor, number, None, _TO_GROUP if to_group else 0)
            return
        except OSError as error:
            if not to_group or error.errno != errno.EINVAL:
                raise
            # Before Linux 6.9 a pidfd is for the leader only; this fails if the leader has ended, when its
            # pid must not be used for the group.
            signal.pidfd_send_signal(descriptor, 0)
    os.kill(-pid if to_group else pid, number)


def request_stacks(folder: RunFolder) -> bool:
    """Make a run that does not respond write its threads' stacks to its output, once per stall over all
    supervisors; return whether they were requested now.

    SIGUSR1 ends a process without a handler for it, so it is sent only to one with a handler. A script's
    handler is its own, such as for a checkpoint before a job ends, so a script gets none.
    """
    if folder.request().script is not None:
        return False
    process = find_process(folder)
    if process is None or process.pid is None or not handles_signal(process.pid, signal.SIGUSR1):
        return False
    if not _mark_stall(folder):
        return False
    with suppress(RunStateError):
        return _signal(folder, signal.SIGUSR1, find_process, to_group=False)
    return False


def _mark_stall(folder: RunFolder) -> bool:
    """Mark the stacks of the current stall as requested; return False if they already were. The mark has the
    time of the last heartbeat."""
    mark = folder.path / STACKS_MARK
    try:
        beat_ns = folder.alive.stat().st_mtime_ns
        if mark.exists() and mark.stat().st_mtime_ns == beat_ns:
            return False
        mark.touch()
        os.utime(mark, ns=(beat_ns, beat_ns))
    except OSError:
        return False
    return True
