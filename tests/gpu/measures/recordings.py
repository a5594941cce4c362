"""Runs of each preset as a person would start them, kept as small files: for tests and for the demo."""

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from harness.catalog import MODELS
from harness.demo.recordings import MOST_FILE_BYTES, MOST_TOTAL_BYTES, pack
from harness.identity import read_identity
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.gpu.context import Context
from tests.gpu.measures.worth import MODELS_IN_ORDER

PRESETS = ("workstation", "h200", "laptop")
FOLDER = "runs"
"""Beside the results."""
STEPS, SECONDS = 300, 8.0
"""A run ends with whichever comes first."""
_QUICK_STEPS = 40
_PATIENCE_S = 90.0
_POLL_S = 0.2


def measure(context: Context) -> None:
    """Each model's presets."""
    presets, models = (("laptop",), ("mlp",)) if context.is_quick else (PRESETS, MODELS_IN_ORDER)
    steps = _QUICK_STEPS if context.is_quick else STEPS
    for item in context.pending(f"{model}-{preset}" for preset in presets for model in models):
        model, _, preset = item.rpartition("-")
        if (missing := MODELS[model].missing) is not None:
            context.put(item, {"problem": missing})
            continue
        values: dict[str, object] = {"model": model, "preset": preset, "device": context.device}
        values |= {"max_steps": steps, "max_seconds": SECONDS}
        context.put(item, record(values, context.folder / FOLDER / f"{item}.zip"))


def record(values: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """Train a run to its end, until its process has closed its log, and keep it in `target`; facts of it, and
    why where it is not kept."""
    with tempfile.TemporaryDirectory(prefix="stepscope-recording-", ignore_cleanup_errors=True) as home:
        supervisor = Supervisor(Home.locate(home, os.environ))
        folder = supervisor.start(f"recorded: {target.stem}", resolve(values))
        deadline_s = time.monotonic() + _PATIENCE_S
        while not supervisor.status(folder).state.is_over or _is_alive(folder):
            if time.monotonic() > deadline_s:
                supervisor.stop(folder)
            time.sleep(_POLL_S)
        supervisor.reap()
        status = supervisor.status(folder)
        facts: dict[str, Any] = {"state": status.state.value, "message": status.message, **_facts(folder)}
        if not folder.log.exists():
            return facts | {"problem": "not kept: it has no log"}
        size = pack(folder, target)
    others = sum(path.stat().st_size for path in target.parent.glob("*.zip") if path != target)
    if size > MOST_FILE_BYTES or others + size > MOST_TOTAL_BYTES:
        target.unlink()
        return facts | {"problem": f"not kept: {size:,} bytes, {others:,} with the others"}
    return facts | {"file": f"{FOLDER}/{target.name}", "file_bytes": size}


def _is_alive(folder: RunFolder) -> bool:
    """Return whether the training process exists; the supervisor collects it once it has ended."""
    identity = read_identity(folder.process)
    return identity is not None and psutil.pid_exists(identity.pid)


def _facts(folder: RunFolder) -> dict[str, Any]:
    if not folder.log.exists():
        return {"steps": 0, "step_ms": None}
    with LogReader(folder.log) as log:
        extent = log.extent()
        rows = [row for row in log.steps(1, extent.last or 0) if not row.flags]
    step_ms = statistics.median(row.step_ns for row in rows) / 1e6 if rows else None
    return {"steps": extent.steps, "step_ms": step_ms}
