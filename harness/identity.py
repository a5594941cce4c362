"""Which process is which: (boot id, pid, start ticks, nonce).

A pid is reused, a machine reboots, and two containers that share a home each have a process 7. The start
ticks tell apart two processes of one pid, the boot id two boots, and the nonce (a random word the supervisor
puts into the process's environment) two containers. `process.json` in the run's folder carries all four. It
says which process was meant and proves nothing: a folder can be copied or crafted, so that
`harness.supervisor.processes` decides which process belongs to a folder.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.plain_json import json_object
from harness.regular_files import read_whole, write_private

# The environment variable by which the supervisor hands a new process its nonce.
NONCE_VARIABLE = "STEPSCOPE_PROCESS_NONCE"

_MOST_IDENTITY_BYTES = 4096
# The kernel's own limit (PID_MAX_LIMIT); zero and below mean groups.
_LARGEST_PID = 2**22
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Identity(NamedTuple):
    """One process, for good. `start_ticks` counts from boot on Linux; elsewhere it is the creation time in
    hundredths of a second."""

    boot_id: str
    pid: int
    start_ticks: int
    nonce: str


def new_nonce() -> str:
    """A random word of 16 hexadecimal digits."""
    return secrets.token_hex(8)


def boot_id() -> str:
    """What tells this boot of this machine from every other."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"booted-{int(psutil.boot_time())}"


def start_ticks(pid: int) -> int | None:
    """When process `pid` started; None when there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None if _BOOT_ID.exists() else _creation_time(pid)
    except OSError:
        return None
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
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
    """The identity of the live process `pid`, or None when there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else Identity(boot_id(), pid, ticks, nonce)


def identify_self(environ: Mapping[str, str]) -> Identity:
    """This process's own identity, with the nonce the supervisor gave it, or one of its own making."""
    identity = identify(os.getpid(), environ.get(NONCE_VARIABLE) or new_nonce())
    if identity is None:
        raise RuntimeError("this process does not find itself among the running ones")
    return identity


def is_running(identity: Identity | None) -> bool:
    """Whether exactly this process still runs here; a zombie does not."""
    if identity is None or identity.boot_id != boot_id():
        return False
    if start_ticks(identity.pid) != identity.start_ticks:
        return False
    carried = carried_nonce(identity.pid)
    return carried is None or carried == identity.nonce


def carried_nonce(pid: int) -> str | None:
    """The nonce in the process's environment, None when it has none or does not let us look."""
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
    """Write `process.json`, whole or not at all. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(draft, json.dumps(identity._asdict()))
    draft.replace(path)


def read_identity(path: Path) -> Identity | None:
    """Read `process.json`; None when it is missing, no small regular file, or does not hold an identity."""
    try:
        values = json_object(read_whole(path, _MOST_IDENTITY_BYTES).decode("utf-8"))
        pid, ticks = values["pid"], values["start_ticks"]
        if type(pid) is not int or type(ticks) is not int or not 0 < pid <= _LARGEST_PID:
            return None
        return Identity(str(values["boot_id"]), pid, ticks, str(values["nonce"]))
    except (OSError, ValueError, KeyError):
        return None


def handles_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler for signal `number`; False where that cannot be known.

    A signal without a handler may end the process: none is sent that only asks for information.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
