"""Reaps adopted processes of runs: after its parent's exit, the kernel assigns a process to the first process
of the container, or to a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)).

A dashboard that is the first process of a container adopts every run that a shell started, and the workers of
every run that was killed. No other process waits for them, so they would remain zombies.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import psutil

from harness.store.folder import RunFolder


class Reaped(NamedTuple):
    """An adopted training process that has ended."""

    folder: RunFolder
    pid: int
    returncode: int


# A child that a thread of this process waits for is reaped at once; an orphan remains a zombie.
_GRACE_S = 1.0


class Orphans:
    """Finds and reaps the adopted zombies of runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[int, float] = {}

    def reap(self, runs_by_pid: Callable[[], Mapping[int, RunFolder]], own: Collection[int]) -> list[Reaped]:
        """Reap processes of the runs in `runs_by_pid` that have been zombies for a second; return the
        training processes among them. `runs_by_pid` is called only when there is such a zombie. `own` are the
        children that other threads wait for."""
        zombies = self._lasting_zombies(own)
        folders = runs_by_pid() if zombies else {}
        reaped = []
        for pid in zombies:
            try:
                # A run's process leads a session, and its workers stay in it.
                folder = folders.get(os.getsid(pid))
                if folder is None:
                    continue
                _, status = os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue
            if folders.get(pid) == folder:
                reaped.append(Reaped(folder, pid, os.waitstatus_to_exitcode(status)))
        return reaped

    def _lasting_zombies(self, own: Collection[int]) -> list[int]:
        if not _has_zombie():
            self._since_s.clear()
            return []
        now_s = self._clock()
        pids = [child.pid for child in psutil.Process().children() if _is_zombie(child)]
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in pids if pid not in own}
        return [pid for pid, since_s in self._since_s.items() if now_s - since_s >= _GRACE_S]


def _has_zombie() -> bool:
    """Return whether any child has ended and was not reaped. One system call."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _is_zombie(child: psutil.Process) -> bool:
    try:
        return child.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
