"""The profiles of a run: recorded ones, the latest request, and traces to download."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from dashboard.data.captures import captured
from dashboard.data.runs import RunView
from harness import words
from harness.errors import LogError
from harness.records.profile import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.records.run import CommandKind, CommandState, StepFlag, StepRow
from harness.settings.spec import change_title
from harness.store.folder import RunFolder
from harness.store.reader import LogReader

# The most steps of a request; the training process validates it again.
MOST_STEPS = 20
DEFAULT_STEPS = 3


class Profile(NamedTuple):
    """One profile with all of its rows."""

    row: ProfileRow
    operators: Sequence[ProfileOpRow]
    modules: Sequence[ProfileModuleRow]
    stacks: Sequence[ProfileStackRow]


class ProfileRequest(NamedTuple):
    """The latest request for a profile, and its result."""

    state: CommandState
    # The step of the result.
    step: int | None
    message: str
    # The first and the last step of a recording in progress.
    recording: tuple[int, int] | None
    # True while a snapshot is being taken, which the profile waits for.
    is_after_snapshot: bool = False


class TraceFile(NamedTuple):
    """The trace of a profile to download; without a `path`, `reason` says why."""

    path: Path | None
    size_bytes: int
    reason: str


def read_all(folder: RunFolder) -> list[ProfileRow]:
    """Read every profile, including failed ones, in order. Raises LogError."""
    with LogReader(folder.log) as reader:
        return reader.profiles.all()


def read(folder: RunFolder, row: ProfileRow) -> Profile:
    """Read a profile with its operators, modules and stacks. Raises LogError."""
    return _read(str(folder.path), row)


@st.cache_resource(show_spinner=False, max_entries=16)
def _read(folder: str, row: ProfileRow) -> Profile:
    """Read a profile through a cache: it does not change once written. Raises LogError."""
    with LogReader(RunFolder(Path(folder)).log) as reader:
        log, key = reader.profiles, row.profile_id
        return Profile(row, log.operators(key), log.modules(key), log.stacks(key))


def settings_words(view: RunView, row: ProfileRow) -> str:
    """Return the change of settings that a profile was taken after: "AMP bf16", "as started"."""
    version = next((one for one in view.history if one.version == row.settings_version), None)
    return "n/a" if version is None else change_title(version.changes) or "as started"


def changed_words(view: RunView, old: ProfileRow, new: ProfileRow) -> str:
    """Return the settings changed between two profiles: "AMP bf16, batch 48"; empty without changes."""
    values: dict[str, Any] = {}
    for version in view.history:
        if old.settings_version < version.version <= new.settings_version:
            values |= version.changes
    return change_title(values)


def samples_words(folder: RunFolder, old: ProfileRow, new: ProfileRow) -> str:
    """Return a note on different numbers of samples per step in two profiles; empty if they are equal.
    Raises LogError."""
    with LogReader(folder.log) as reader:
        steps = [reader.steps(row.first_step, row.first_step) for row in (old, new)]
    batches = [step.samples for rows in steps for step in rows]
    if len(batches) < len(steps) or batches[0] == batches[1] or not all(batches):
        return ""
    before, after = (words.plural(samples, "sample") for samples in batches)
    return f"All times are per step: {before} in #{old.profile_id}, {after} in #{new.profile_id}."


def name(view: RunView, row: ProfileRow) -> str:
    """Return a profile's label: "#2 · step 9,180 · AMP bf16"."""
    return f"#{row.profile_id} · step {words.count(row.first_step)} · {settings_words(view, row)}"


def latest_request(view: RunView) -> ProfileRequest | None:
    """Return the latest request for a profile; None without one."""
    command = next((one for one in reversed(view.commands) if one.kind == CommandKind.PROFILE), None)
    if command is None:
        return None
    answer = view.answers.get(command.command_id)
    if answer is not None:
        return ProfileRequest(CommandState(answer.state), answer.step, answer.message, None)
    if view.status.state.is_over:
        return ProfileRequest(CommandState.EXPIRED, None, "The run ended before it could be taken.", None)
    try:
        with LogReader(view.folder.log) as reader:
            newest = reader.last_steps(MOST_STEPS + 1)
    except LogError:
        newest = []
    steps = command.values.get("steps", DEFAULT_STEPS)
    is_tracked = bool(newest) and bool(newest[-1].flags & StepFlag.TRACKED)
    return ProfileRequest(CommandState.QUEUED, None, "", recording_steps(newest, steps), is_tracked)


def recording_steps(newest: Sequence[StepRow], steps: int) -> tuple[int, int] | None:
    """Return the first and last step being recorded, from the newest steps in order: the profiler is turned
    on in the step before the first. None while it is off."""
    on = list(takewhile(lambda row: row.flags & StepFlag.PROFILED, reversed(newest)))
    return (on[-1].step + 1, on[-1].step + steps) if on else None


def trace(folder: RunFolder, row: ProfileRow) -> TraceFile:
    """Return the trace of a profile, or the reason why it cannot be downloaded."""
    if row.file is None:
        return TraceFile(None, 0, "This profile has no trace.")
    path = captured(folder, row.file)
    try:
        size = 0 if path is None else path.stat().st_size
    except OSError:
        path = None
    if path is None:
        return TraceFile(None, 0, "The trace is missing in the run's folder.")
    return TraceFile(path, size, "")
