"""The profiles of a run: what was taken, what is being asked for, and the trace to look into elsewhere."""

import gzip
import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from dashboard.data.captures import captured
from dashboard.data.changes import settings_title
from dashboard.data.runs import Look
from harness import words
from harness.errors import LogError
from harness.profile_records import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.records import CommandKind, CommandState, StepFlag, StepRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader

MOST_STEPS = 20
"""As many steps can be asked for; the harness checks it again."""
DEFAULT_STEPS = 3
MOST_TRACE_BYTES = 256 << 20
"""Larger traces are not read for a download: this much memory and more goes through the dashboard then."""


class Profile(NamedTuple):
    """One profile with everything in it."""

    row: ProfileRow
    operators: Sequence[ProfileOpRow]
    modules: Sequence[ProfileModuleRow]
    stacks: Sequence[ProfileStackRow]


class Asked(NamedTuple):
    """The newest request for a profile, and what became of it."""

    state: CommandState
    step: int | None
    """At which it was answered."""
    message: str
    recording: tuple[int, int] | None
    """The first and the last step that is recorded, while that goes on."""


class Trace(NamedTuple):
    """The trace of a profile to download; without a `path`, `why_not` says why there is none."""

    path: Path | None
    size_bytes: int
    why_not: str


def taken(folder: RunFolder) -> list[ProfileRow]:
    """Every profile, also those that failed, in order. Raises LogError."""
    with LogReader(folder.log) as reader:
        return reader.profiles.all()


def read(folder: RunFolder, row: ProfileRow) -> Profile:
    """A profile with its operators, modules and stacks. Raises LogError."""
    return _read(str(folder.path), row)


@st.cache_resource(show_spinner=False, max_entries=16)
def _read(folder: str, row: ProfileRow) -> Profile:
    """Kept, because a profile does not change once it is written. Raises LogError."""
    with LogReader(RunFolder(Path(folder)).log) as reader:
        log, key = reader.profiles, row.profile_id
        return Profile(row, log.operators(key), log.modules(key), log.stacks(key))


def settings_words(seen: Look, row: ProfileRow) -> str:
    """Under which settings a profile was taken: "AMP bf16", "as started"."""
    version = next((one for one in seen.history if one.version == row.settings_version), None)
    return "n/a" if version is None else settings_title(json.loads(version.changed)) or "as started"


def changed_words(seen: Look, old: ProfileRow, new: ProfileRow) -> str:
    """What was set between two profiles: "AMP bf16, batch 48"; empty where nothing was."""
    values: dict[str, Any] = {}
    for version in seen.history:
        if old.settings_version < version.version <= new.settings_version:
            values |= json.loads(version.changed)
    return settings_title(values)


def samples_words(folder: RunFolder, old: ProfileRow, new: ProfileRow) -> str:
    """That a step is not the same amount of work in two profiles; empty where it is. Raises LogError."""
    with LogReader(folder.log) as reader:
        steps = [reader.steps(row.first_step, row.first_step) for row in (old, new)]
    batches = [step.samples for found in steps for step in found]
    if len(batches) < len(steps) or batches[0] == batches[1]:
        return ""
    before, after = (words.plural(samples, "sample") for samples in batches)
    return f"All times are a step: {before} in #{old.profile_id}, {after} in #{new.profile_id}."


def name(seen: Look, row: ProfileRow) -> str:
    """A profile for people: "#2 · step 9,180 · AMP bf16"."""
    return f"#{row.profile_id} · step {words.count(row.first_step)} · {settings_words(seen, row)}"


def asked(seen: Look) -> Asked | None:
    """The newest request for a profile; None where there was none."""
    command = next((one for one in reversed(seen.commands) if one.kind == CommandKind.PROFILE), None)
    if command is None:
        return None
    answer = seen.answers.get(command.command_id)
    if answer is not None:
        return Asked(CommandState(answer.state), answer.step, answer.message, None)
    if seen.status.state.is_over:
        return Asked(CommandState.EXPIRED, None, "The run ended before it could be taken.", None)
    try:
        with LogReader(seen.folder.log) as reader:
            newest = reader.last_steps(MOST_STEPS + 1)
    except LogError:
        newest = []
    steps = command.values.get("steps", DEFAULT_STEPS)
    return Asked(CommandState.QUEUED, None, "", recorded(newest, steps))


def recorded(newest: Sequence[StepRow], steps: int) -> tuple[int, int] | None:
    """Which steps are being recorded, told by the newest steps in order: the profiler is switched on in the
    step before the first. None while it is off."""
    on = list(takewhile(lambda row: row.flags & StepFlag.PROFILED, reversed(newest)))
    return (on[-1].step + 1, on[-1].step + steps) if on else None


def trace(folder: RunFolder, row: ProfileRow) -> Trace:
    """The file of a profile's trace, if it is there and can be handed out."""
    if row.file is None:
        return Trace(None, 0, "No trace was kept for this profile.")
    path = captured(folder, row.file)
    try:
        size = 0 if path is None else path.stat().st_size
    except OSError:
        path = None
    if path is None:
        return Trace(None, 0, "Its trace is gone from the run's folder.")
    if size > MOST_TRACE_BYTES:
        where = f"captures/{row.file} in the run's folder"
        why = f"Its trace has {words.size(size)}, too much to hand out here; take it from {where}."
        return Trace(None, size, why)
    return Trace(path, size, "")


def read_trace(path: Path) -> bytes:
    """The trace as it is; an empty one that says why where it was taken away since the page was drawn: a
    download has begun by then. The page says it when it is drawn next."""
    try:
        return path.read_bytes()
    except OSError as error:
        told = {"traceEvents": [], "message": f"{path.name} cannot be read: {error.strerror}."}
        return gzip.compress(json.dumps(told).encode())
