"""One line about a run, for lists: who it is, how it does, and its latest figures."""

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from harness.analysis.state import RunStatus
from harness.config import from_json
from harness.device.report import facts_from_dict
from harness.errors import SettingError
from harness.records import DeviceFacts, StepRow, decode_float
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.supervisor.inspection import Look


class RunSummary(NamedTuple):
    """A run in one row. Step time (the median) and samples/s are those of its last 50 steps, without warm-up
    and transition; the peaks are those of the whole run."""

    run_id: str
    name: str
    status: RunStatus
    settings: Settings | None
    """The settings asked for; None when this version does not understand them."""
    device: DeviceFacts | None
    parameters: int | None
    steps: int
    last_step: int | None
    loss: float | None
    step_ns: float | None
    samples_per_s: float | None
    allocated_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    created_unix_ns: int
    started_unix_ns: int | None
    ended_unix_ns: int | None
    is_simulated: bool
    path: Path
    problem: str | None
    """Why the log cannot be read; such a run can still be listed and deleted."""


def summarise(folder: RunFolder, look: Look) -> RunSummary:
    """The summary of what was seen of a run."""
    log, run, request = look.log, look.log.run, look.request
    last = log.recent[-1] if log.recent else None
    calm = log.calm
    return RunSummary(
        run_id=folder.run_id,
        name=run.name if run is not None else request.name,
        status=look.status,
        settings=_settings(request.settings_json if run is None else run.settings),
        device=None if run is None else read_device(run.device),
        parameters=None if run is None else run.model_parameters,
        steps=log.steps,
        last_step=log.last_step,
        loss=None if last is None else decode_float(last.loss, last.loss_state),
        step_ns=statistics.median(row.step_ns for row in calm) if calm else None,
        samples_per_s=_samples_per_s(calm),
        allocated_bytes=None if last is None else last.allocated_bytes,
        peak_allocated_bytes=log.peak_allocated_bytes,
        peak_reserved_bytes=log.peak_reserved_bytes,
        created_unix_ns=request.created_unix_ns,
        started_unix_ns=None if run is None else run.started_unix_ns,
        ended_unix_ns=_ended_unix_ns(folder, look),
        is_simulated=run is not None and bool(run.simulated),
        path=folder.path,
        problem=log.problem,
    )


def read_device(text: str) -> DeviceFacts | None:
    """The device facts in a log; None when they are not understood."""
    try:
        return facts_from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None


def _settings(text: str) -> Settings | None:
    try:
        return from_json(text)
    except (SettingError, ValueError, TypeError):
        return None


def _samples_per_s(rows: tuple[StepRow, ...]) -> float | None:
    elapsed_ns = sum(row.step_ns for row in rows)
    return sum(row.samples for row in rows) / elapsed_ns * 1e9 if elapsed_ns else None


def _ended_unix_ns(folder: RunFolder, look: Look) -> int | None:
    """When the run ended: by its own word, else as its parent saw it, else the log's last write."""
    if not look.status.state.is_over:
        return None
    if look.log.run is not None and look.log.run.ended_unix_ns is not None:
        return look.log.run.ended_unix_ns
    if look.exit is not None:
        return look.exit.observed_unix_ns
    try:
        return folder.log.stat().st_mtime_ns
    except OSError:
        return None
