"""The identity of a process: (boot id, pid, start ticks, nonce).

Pids are reused, machines reboot, and two containers that share a home may each have a process 7. The start
ticks distinguish two processes with one pid, the boot id two boots, and the nonce (a random string that the
supervisor puts into the process's environment) two containers. `process.json` in the run's folder contains
all four. It proves nothing, because a folder can be copied or crafted: `harness.supervisor.processes` decides
which process belongs to a folder.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.files.plain_json import json_object
from harness.files.regular import read_whole, write_private

# The environment variable with the nonce that the supervisor gives to a new process.
NONCE_VARIABLE = "STEPSCOPE_PROCESS_NONCE"

_MOST_IDENTITY_BYTES = 4096
# The kernel's limit (PID_MAX_LIMIT); zero and negative values are process groups.
_LARGEST_PID = 2**22
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Identity(NamedTuple):
    """A unique process. `start_ticks` counts from boot on Linux; elsewhere it is the creation time in
    hundredths of a second."""

    boot_id: str
    pid: int
    start_ticks: int
    nonce: str


def new_nonce() -> str:
    """Return a random string of 16 hexadecimal digits."""
    return secrets.token_hex(8)


def boot_id() -> str:
    """Return an id of the current boot of this machine."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"booted-{int(psutil.boot_time())}"


def start_ticks(pid: int) -> int | None:
    """Return the start time of process `pid`; None when it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None if _BOOT_ID.exists() else _creation_time(pid)
    except OSError:
        return None
    # The command's name is in parentheses and may itself contain spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _creation_time(pid: int) -> int | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time() * 100)
    except psutil.Error:
        return None


def identify(pid: int, nonce: str) -> Identity | None:
    """Return the identity of the live process `pid`, or None when there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else Identity(boot_id(), pid, ticks, nonce)


def identify_self(environ: Mapping[str, str]) -> Identity:
    """Return the identity of this process, with the supervisor's nonce or else a new one."""
    identity = identify(os.getpid(), environ.get(NONCE_VARIABLE) or new_nonce())
    if identity is None:
        raise RuntimeError("this process is not among the running processes")
    return identity


def is_running(identity: Identity | None) -> bool:
    """Return whether exactly this process still runs on this machine; a zombie does not."""
    if identity is None or identity.boot_id != boot_id():
        return False
    if start_ticks(identity.pid) != identity.start_ticks:
        return False
    carried = carried_nonce(identity.pid)
    return carried is None or carried == identity.nonce


def carried_nonce(pid: int) -> str | None:
    """Return the nonce in the process's environment; None when it has none or is not readable."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = NONCE_VARIABLE.encode() + b"="
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode("ascii", errors="replace")
    return None


def write_identity(path: Path, identity: Identity) -> None:
    """Write `process.json` atomically. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(draft, json.dumps(identity._asdict()))
    draft.replace(path)


def read_identity(path: Path) -> Identity | None:
    """Read `process.json`; None when it is missing, no small regular file, or not an identity."""
    try:
        values = json_object(read_whole(path, _MOST_IDENTITY_BYTES).decode("utf-8"))
        pid, ticks = values["pid"], values["start_ticks"]
        if type(pid) is not int or type(ticks) is not int or not 0 < pid <= _LARGEST_PID:
            return None
        return Identity(str(values["boot_id"]), pid, ticks, str(values["nonce"]))
    except (OSError, ValueError, KeyError):
        return None


def handles_signal(pid: int, number: int) -> bool:
    """Return whether the process has a handler for signal `number`; False when that is unknown.

    A signal without a handler may end the process, so a signal that requests information needs one.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
