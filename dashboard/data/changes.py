"""Requests to a run, their results, and the observed changes."""

from typing import NamedTuple

import streamlit as st

from dashboard.data.runs import RunView
from harness.analysis.effect import LENGTHS_S, ObservedChange, count_lengths
from harness.errors import LogError
from harness.records.run import CommandKind, CommandRow, CommandState
from harness.settings.spec import change_title
from harness.store.reader import LogReader
from harness.supervisor.changes import observe_version, spans_s

_TITLES = {
    CommandKind.EMPTY_CACHE.value: "empty_cache()",
    CommandKind.END_MEASUREMENT.value: "end measurement",
}


class ChangeEntry(NamedTuple):
    """One request, or one change of settings without one, with its result."""

    title: str
    state: CommandState
    step: int | None
    message: str
    observed: ObservedChange | None
    # Wall time in nanoseconds, for sorting.
    order: int
    # The message is the reason of a change that nobody requested.
    is_imposed: bool = False


class _CachedChange(NamedTuple):
    """An observed change with the number of window lengths that its run had steps for. Further steps do not
    alter a final one."""

    observed: ObservedChange
    lengths: int
    is_final: bool


@st.cache_resource(show_spinner=False)
def _comparisons() -> dict[tuple[str, int], _CachedChange]:
    """Return the cache of observed changes by run and version of the settings."""
    return {}


@st.cache_resource(show_spinner=False)
def _reasons() -> dict[tuple[str, int], str]:
    """Return the cache of the reasons of changes without a request, by run and version of the settings."""
    return {}


def changes(view: RunView, most: int) -> list[ChangeEntry]:
    """Return the last `most` requests, newest first, with the observed change of those that were applied.

    Includes versions of the settings without a request at hand: the run was copied, or is simulated.
    """
    versions = {row.command_id: at for at, row in enumerate(view.history) if row.command_id}
    command_ids = {command.command_id for command in view.commands}
    entries = [
        _from_command(view, command, versions.get(command.command_id)) for command in view.commands[-most:]
    ]
    unmatched = [
        at
        for at, row in enumerate(view.history)
        if at and row.is_change and row.command_id not in command_ids
    ]
    entries += [_from_version(view, at) for at in unmatched[-most:]]
    entries.sort(key=lambda change: change.order, reverse=True)
    return entries[:most]


def requests_from(view: RunView, source: str, most: int) -> list[ChangeEntry]:
    """Return the last `most` requests from `source`, newest first."""
    versions = {row.command_id: at for at, row in enumerate(view.history) if row.command_id}
    kinds = (CommandKind.SET, CommandKind.MEASURE)
    began = {ack.command_id for ack in view.acks if ack.state == CommandState.APPLIED}
    commands = [
        command
        for command in view.commands
        if command.source == source
        and command.kind in kinds
        # A measurement that began is shown by its effect.
        and (command.kind == CommandKind.SET or command.command_id not in began)
    ]
    return [_from_command(view, one, versions.get(one.command_id)) for one in reversed(commands[-most:])]


def _from_command(view: RunView, command: CommandRow, at: int | None) -> ChangeEntry:
    ack = view.answers.get(command.command_id)
    state = CommandState(ack.state) if ack is not None else CommandState.QUEUED
    if ack is None and view.status.state.is_over:
        state = CommandState.EXPIRED
    applied = command.kind == CommandKind.SET and state is CommandState.APPLIED and at is not None
    return ChangeEntry(
        title=_title(command),
        state=state,
        step=ack.step if ack is not None else None,
        message=ack.message if ack is not None else "",
        observed=observed_change(view, at) if applied and at is not None else None,
        order=command.created_unix_ns,
    )


def _from_version(view: RunView, at: int) -> ChangeEntry:
    row = view.history[at]
    began_ns = view.run.started_unix_ns if view.run is not None else 0
    return ChangeEntry(
        title=change_title(row.changes),
        state=CommandState.APPLIED,
        step=row.step,
        message=_reason(view, row.version) if row.command_id is None else "",
        observed=observed_change(view, at),
        order=began_ns + row.t_ns,
        is_imposed=row.command_id is None,
    )


def _reason(view: RunView, version: int) -> str:
    """Return what the run recorded with a version of the settings that nobody requested."""
    key = (view.folder.run_id, version)
    if key not in _reasons():
        try:
            with LogReader(view.folder.log) as reader:
                reason = reader.setting_message(version)
        except LogError:
            return ""
        if not reason:
            return ""
        _reasons()[key] = reason
    return _reasons()[key]


def _title(command: CommandRow) -> str:
    """Return a short title of a request: "AMP bf16", "batch 64, pinned on", "empty_cache()"."""
    if command.kind == CommandKind.MEASURE and isinstance(command.values.get("settings"), dict):
        return f"measure {change_title(command.values['settings'])}"
    if command.kind != CommandKind.SET:
        return _TITLES.get(command.kind, command.kind)
    return change_title(command.values)


def observed_change(view: RunView, at: int) -> ObservedChange | None:
    """Compare the steps around version `at` of the settings, once for each window length."""
    if at == 0:
        return None
    key = (view.folder.run_id, view.history[at].version)
    cached = _comparisons().get(key)
    if cached is not None and cached.is_final:
        return cached.observed
    is_closed = at + 1 < len(view.history) or view.status.state.is_over
    try:
        with LogReader(view.folder.log) as reader:
            lengths = count_lengths(min(spans_s(reader, view.history, at)))
            if cached is not None and cached.lengths == lengths and not is_closed:
                return cached.observed
            observed = observe_version(reader, view.history, at, is_closed)
    except LogError:
        return None
    is_final = is_closed or (observed.has_windows and lengths == len(LENGTHS_S))
    if is_final or observed.has_windows:
        _comparisons()[key] = _CachedChange(observed, lengths, is_final)
    return observed
