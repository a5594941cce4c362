"""The texts of errors when a GPU's memory runs out, verbatim: here, and in a PID namespace of their own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.gpu.container import container_signs
from tests.gpu.context import Context


class Group(NamedTuple):
    """Cases of `tests.gpu.running_out` that share a process. `prefix` is a command that runs it."""

    cases: tuple[str, ...]
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
GROUPS: Mapping[str, Group] = {
    "as it is": Group(("cap", "too large", "full card", "pinned memory")),
    "beside another process": Group(("full card, another process",)),
    "in a PID namespace of its own, as in a container": Group(
        ("cap", "full card, another process"), _NAMESPACE
    ),
    "cuBLAS": Group(("cuBLAS on a full card",)),
    "cuDNN": Group(("cuDNN on a full card",)),
    "a second process": Group(("context on a full card",)),
    "with expandable segments": Group(("cap", "full card"), environment=_EXPANDABLE),
}
_GROUP_S = 40.0


def measure(context: Context) -> None:
    """Run every group."""
    for item in context.pending(["container"]):
        context.put(item, container_signs())
    for item in context.pending(GROUPS):
        context.put(item, run_group(GROUPS[item]))


def run_group(group: Group) -> list[dict[str, Any]]:
    """Return what each case found; a last row with `problem` says why there are no more."""
    if group.prefix and shutil.which(group.prefix[0]) is None:
        return [{"problem": f"{group.prefix[0]} is not installed"}]
    command = [*group.prefix, sys.executable, "-m", "tests.gpu.running_out", *group.cases]
    environment = os.environ | dict(group.environment)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_GROUP_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return [{"problem": f"it was not done in {_GROUP_S:.0f} s"}]
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
    if done.returncode:
        rows.append({"problem": f"exit code {done.returncode}: {done.stderr.strip()[-400:]}"})
    return rows
