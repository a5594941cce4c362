"""Signs that this process runs in a container."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from harness.device.host.details import sees_machine_pids

_MARKERS = (Path(".dockerenv"), Path("run/.containerenv"))
_GROUPS = re.compile(r"docker|kubepods|containerd|libpod|lxc|machine\.slice")


def container_signs(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[str]:
    """One clause per sign; empty where there is none.

    Docker and Podman leave a marker file, systemd-nspawn and Podman the variable `container`, control groups
    of version 1 the name of the runtime. A PID namespace of its own is the sign that matters for what torch
    writes: process numbers are then not those that the driver knows.
    """
    signs = [f"/{path} exists" for path in _MARKERS if (root / path).exists()]
    if environ.get("container"):
        signs.append(f"container={environ['container']}")
    try:
        groups = (root / "proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        groups = ""
    if match := _GROUPS.search(groups):
        signs.append(f"/proc/1/cgroup names {match[0]}")
    if not sees_machine_pids(root / "proc/self/ns/pid"):
        signs.append("a PID namespace other than the machine's")
    return signs
