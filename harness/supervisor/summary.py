"""The summary of a run for lists: identity, state and latest figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness import words
from harness.analysis.state import RunStatus
from harness.records.entry import RunEntry
from harness.records.floats import decode_float
from harness.records.imported import ImportOrigin
from harness.records.run import DeviceFacts, RunState
from harness.records.script import ScriptOrigin
from harness.settings.recorded import RecordedSettings, read_recorded
from harness.store.folder import RunFolder, shown_name
from harness.store.labels import Labels
from harness.supervisor.inspection import RunInspection
from harness.supervisor.logs import PaceSteps
from harness.supervisor.stored_json import read_device, read_versions
from harness.words import printable


class RunSummary(NamedTuple):
    """One run in a list. Step time (the median) and samples/s are those of its last 50 steps, without warm-up
    and transition; the peaks are those of the whole run."""

    run_id: str
    name: str
    status: RunStatus
    # The requested settings; None if this version cannot read them.
    settings: RecordedSettings | None
    # The command of a script's run.
    script: ScriptOrigin | None
    device: DeviceFacts | None
    parameters: int | None
    # None without a readable log, unless it has not been created yet.
    steps: int | None
    last_step: int | None
    loss: float | None
    step_ns: float | None
    samples_per_s: float | None
    # The number of steps that these two are of.
    pace_steps: PaceSteps
    allocated_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    created_unix_ns: int
    started_unix_ns: int | None
    ended_unix_ns: int | None
    is_simulated: bool
    # The source of an imported run.
    imported: ImportOrigin | None
    # Versions of Python, torch, CUDA, …; empty without a log.
    versions: Mapping[str, Any]
    path: Path
    # The reason that the log cannot be read; such a run can still be listed and deleted.
    problem: str | None

    @property
    def subject(self) -> str | None:
        """The script or the model with its size: "train.py", "cnn laptop"; None if unknown."""
        return subject_of(self.script, self.settings)

    def entry(self, labels: Labels) -> RunEntry:
        """Return the run as plain values, for a list."""
        facts = self._asdict()
        del facts["status"], facts["pace_steps"]
        plain = {
            "state": self.status.state.value,
            "message": self.status.message,
            "is_warning": self.status.is_warning,
            "subject": self.subject,
            "settings": None if self.settings is None else self.settings.to_json(),
            "script": None if self.script is None else self.script._asdict(),
            "device": None if self.device is None else self.device._asdict(),
            "imported": None if self.imported is None else self.imported._asdict(),
            "path": printable(str(self.path)),
        }
        # The round trip turns tuples into lists, so that an entry equals itself from the cache.
        return RunEntry(**json.loads(json.dumps(facts | plain)), **labels._asdict())


def pace_facts(run: RunSummary) -> list[tuple[str, str]]:
    """Return the names and the texts of the step time and the throughput, with the steps that they are of."""
    step_time, rate = words.duration(run.step_ns), words.rate(run.samples_per_s)
    if run.step_ns is not None:
        step_time = f"{step_time}, {_steps_of_pace(run.pace_steps)}"
    if run.samples_per_s is not None:
        rate += ", over the same steps"
    return [("step time", step_time), ("throughput", rate)]


def _steps_of_pace(steps: PaceSteps) -> str:
    """Return the steps that a step time is of."""
    if steps.newest == 1:
        return "that of the only step"
    newest = f"the last {words.plural(steps.newest, 'step')}"
    if steps.steady == steps.newest:
        return f"the median of {newest}"
    if not steps.steady:
        return f"the median of {newest}, none of which is in a steady state"
    return f"the median of {words.plural(steps.steady, 'steady-state step')} among {newest}"


def subject_of(script: ScriptOrigin | None, settings: RecordedSettings | None) -> str | None:
    """Return the short command of a script's run, or model and size; None if unknown."""
    if script is not None:
        return script.short_command
    return None if settings is None else settings.title


def summarize_run(folder: RunFolder, inspection: RunInspection) -> RunSummary:
    """Summarize a run."""
    log, run, request = inspection.log, inspection.log.run, inspection.request
    last = log.last
    is_launching = inspection.status.state is RunState.LAUNCHING and log.problem is None
    return RunSummary(
        run_id=folder.run_id,
        name=request.name if run is None else shown_name(run.name, folder.run_id),
        status=inspection.status,
        settings=read_recorded(request.settings_json if run is None else run.settings),
        script=request.script,
        device=None if run is None else read_device(run.device),
        parameters=None if run is None else run.model_parameters,
        steps=None if run is None and not is_launching else log.steps,
        last_step=log.last_step,
        loss=None if last is None else decode_float(last.loss, last.loss_state),
        step_ns=log.step_ns,
        samples_per_s=log.samples_per_s,
        pace_steps=log.pace_steps,
        allocated_bytes=None if log.reading is None else log.reading.allocated_bytes,
        peak_allocated_bytes=log.peak_allocated_bytes,
        peak_reserved_bytes=log.peak_reserved_bytes,
        created_unix_ns=request.created_unix_ns,
        started_unix_ns=None if run is None else run.started_unix_ns,
        ended_unix_ns=_ended_unix_ns(folder, inspection),
        is_simulated=run is not None and bool(run.simulated),
        imported=request.imported,
        versions={} if run is None else read_versions(run.versions),
        path=folder.path,
        problem=log.problem,
    )


def _ended_unix_ns(folder: RunFolder, inspection: RunInspection) -> int | None:
    """Return the end of the run: as recorded in its log, else its recorded exit, else the newest time in its
    log, else its last heartbeat. The log's file has none: SQLite may write to it when it is read."""
    if not inspection.status.state.is_over:
        return None
    run, last_t_ns = inspection.log.run, inspection.log.last_t_ns
    if run is not None and run.ended_unix_ns is not None:
        return run.ended_unix_ns
    if inspection.exit is not None:
        return inspection.exit.observed_unix_ns
    if run is not None and last_t_ns is not None:
        return run.started_unix_ns + last_t_ns
    try:
        return folder.alive.stat().st_mtime_ns
    except OSError:
        return None
