"""Identification of the training process of a run folder, the basis of signals and of the running state.

`process.json` is part of a copied folder and can be crafted, so it does not identify a process by itself. The
process of a folder is the one that holds the kernel's lock on its file `alive`. A process without that lock,
because it is starting or ending, must be named in `process.json`, still be the same process, have a command
line with `_run` and this folder, and have no other run's folder open: a live folder can be renamed and
another one, such as a copy, put in its place.
"""

import os
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import NamedTuple

import psutil

from harness.identity import carried_nonce, is_running, read_identity, start_ticks
from harness.store.folder import REQUEST, RunFolder
from harness.store.liveness import LockHolder, lock_holder


class RunProcess(NamedTuple):
    """The training process of one run. `pid` is None if it is not visible."""

    pid: int | None
    start_ticks: int | None
    # True if it holds the run's lock.
    is_locked: bool


def find_process(folder: RunFolder) -> RunProcess | None:
    """Return the run's training process; None if it has none."""
    holder = lock_holder(folder.alive)
    if holder is not None and _is_own(folder, holder):
        ticks = None if holder.pid is None else start_ticks(holder.pid)
        return RunProcess(None if ticks is None else holder.pid, ticks, is_locked=True)
    identity = read_identity(folder.process)
    if identity is None or not is_running(identity) or not _trains(identity.pid, folder.path):
        return None
    if _trains_elsewhere(identity.pid, folder.path):
        return None
    return RunProcess(identity.pid, identity.start_ticks, is_locked=False)


def _is_own(folder: RunFolder, holder: LockHolder) -> bool:
    """Return whether the lock is held for this folder. A copy made of hard links (`cp -al`) has the same file
    as the original, and its lock: there the command line decides."""
    try:
        is_shared = folder.alive.stat().st_nlink > 1
    except OSError:
        return False
    return not is_shared or (holder.pid is not None and _trains(holder.pid, folder.path))


def refusal(folder: RunFolder, pid: int) -> str | None:
    """Return the reason that the run's process `pid` must not be signaled, in one sentence, or None."""
    try:
        owner = psutil.Process(pid).uids().real
    except psutil.Error:
        return f"The owner of process {pid} of run {folder.run_id} cannot be read; see `ps -p {pid}`."
    if owner != os.getuid():
        return (
            f"Process {pid} of run {folder.run_id} belongs to another user (uid {owner}); "
            "stop it as that user."
        )
    identity, nonce = read_identity(folder.process), carried_nonce(pid)
    if identity is not None and nonce is not None and nonce != identity.nonce:
        return (
            f"Process {pid} holds the lock of run {folder.run_id}, but {folder.process} describes another "
            f"process (the nonces differ); check it with `ps -p {pid}`, and end it manually if it is yours."
        )
    return None


def stranger_sentence(folder: RunFolder) -> str:
    """Return the reason that a running process in `process.json` was not signaled; empty without one."""
    identity = read_identity(folder.process)
    if identity is None or not is_running(identity):
        return ""
    trained = _trained_folder(identity.pid)
    with suppress(OSError):
        trained = next((path.readlink() for path in _open_run_folders(identity.pid)), trained)
    work = "does not train this folder" if trained is None else f"trains {trained}"
    return f"No signal was sent: process {identity.pid}, which its process.json names, {work}."


def _trains(pid: int, folder: Path) -> bool:
    """Return whether the command line of process `pid` says that it trains the run in `folder`. Paths may
    differ through links, so that the folder itself (its device and inode) is compared."""
    trained = _trained_folder(pid)
    return trained is not None and trained.is_absolute() and _is_same(trained, folder)


def _trains_elsewhere(pid: int, folder: Path) -> bool:
    """Return whether process `pid` has the folder of a run open (a `FolderHandle`), and not `folder`."""
    opened = _open_run_folders(pid)
    return bool(opened) and not any(_is_same(path, folder) for path in opened)


def _open_run_folders(pid: int) -> list[Path]:
    """Return the run folders that process `pid` has open, as paths in /proc; empty where that is unknown.
    A deleted folder counts, as it may have been a run's."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    return [path for path in descriptors if _is_run_folder(path)]


def _is_run_folder(path: Path) -> bool:
    try:
        status = path.stat()
        return S_ISDIR(status.st_mode) and (status.st_nlink == 0 or (path / REQUEST).exists())
    except OSError:
        return False


def _is_same(path: Path, folder: Path) -> bool:
    try:
        return path.samefile(folder)
    except OSError:
        return False


def _trained_folder(pid: int) -> Path | None:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return None
    return Path(words[-1]) if words[-4:-1] == ["-m", "harness", "_run"] else None
