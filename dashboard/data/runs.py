"""The runs of the home: the supervisor of every page, and the state of a run apart from its figures."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from harness.analysis.state import RunStatus
from harness.demo.recordings import add_all
from harness.demo.writing import write_all
from harness.errors import READ_ONLY, LogError, LogMissingError, StepscopeError
from harness.records.imported import ImportOrigin
from harness.records.run import (
    AckRow,
    CommandRow,
    DeviceFacts,
    DeviceKind,
    RunRow,
    SettingsRow,
)
from harness.records.script import DeclaredSetting, ScriptOrigin
from harness.serving import Serving
from harness.settings.recorded import RecordedSettings, read_recorded
from harness.store.control import ControlLog
from harness.store.folder import RunFolder, shown_name
from harness.store.home import Home
from harness.store.labels import Labels, change_tags, set_note
from harness.store.reader import LogReader
from harness.supervisor.stored_json import read_device, read_versions
from harness.supervisor.summary import subject_of
from harness.supervisor.supervisor import Supervisor

# Only this many of the newest runs are checked for activity.
_MAX_CHECKED = 20


@st.cache_resource(show_spinner=False)
def supervisor() -> Supervisor:
    """Return the dashboard's supervisor, one for all browser sessions."""
    return Supervisor(home(), is_read_only=Serving.from_environ(os.environ).is_read_only)


def read_only() -> str | None:
    """Return why this dashboard cannot start or change runs; None if it can."""
    return READ_ONLY if supervisor().is_read_only else None


def home() -> Home:
    """Return the home named by STEPSCOPE_HOME, or the platform's default."""
    return Home.locate(None, os.environ)


class RunView(NamedTuple):
    """The state of a run apart from its figures: identity, status, settings and requests."""

    folder: RunFolder
    name: str
    status: RunStatus
    # None while the run has no log.
    run: RunRow | None
    device: DeviceFacts | None
    # The settings in effect; None if this version cannot read them.
    settings: RecordedSettings | None
    # The settings that the run was started with.
    initial_settings: RecordedSettings | None
    history: Sequence[SettingsRow]
    commands: Sequence[CommandRow]
    acks: Sequence[AckRow]
    # Why the log cannot be read.
    problem: str | None
    # The command of a script's run.
    script: ScriptOrigin | None
    # The settings that the script declared, and why it cannot change others, by their names.
    declared: Sequence[DeclaredSetting] = ()
    unavailable: Mapping[str, str] = {}
    # The source of an imported run.
    imported: ImportOrigin | None = None
    # Whether it trains in several processes.
    has_ranks: bool = False

    @property
    def subject(self) -> str | None:
        """The script or the model with its size: "train.py", "cnn laptop"; None if unknown."""
        return subject_of(self.script, self.initial_settings)

    @property
    def why_no_step(self) -> str:
        """Return the reason why a run that has ended has no step."""
        return "The run has no log." if self.run is None else "The run ended before its first step."

    @property
    def answers(self) -> dict[str, AckRow]:
        """The last result of each command."""
        return {ack.command_id: ack for ack in self.acks}

    @property
    def pending(self) -> list[CommandRow]:
        """Commands without a result, of an active run."""
        if self.status.state.is_over:
            return []
        answers = self.answers
        return [command for command in self.commands if command.command_id not in answers]


def read_view(folder: RunFolder) -> RunView:
    """Read the state of a run. An unreadable log becomes its `problem`, not an error."""
    status = supervisor().status(folder)
    commands = read_commands(folder)
    request = folder.request()
    try:
        with LogReader(folder.log) as reader, reader.at_one_moment():
            # Else a change could have its result and not be in the settings yet.
            run, history, acks = reader.run(), reader.settings_history(), reader.acks()
            declared, unavailable = reader.script.declared_settings(), reader.script.unavailable_settings()
    except LogError as error:
        problem = request.problem if isinstance(error, LogMissingError) else str(error)
        initial_settings = read_recorded(request.settings_json)
        return RunView(
            folder=folder,
            name=request.name,
            status=status,
            run=None,
            device=None,
            settings=initial_settings,
            initial_settings=initial_settings,
            history=(),
            commands=commands,
            acks=(),
            problem=problem,
            script=request.script,
        )
    initial_settings = read_recorded(run.settings)
    settings = read_recorded(history[-1].settings) if history else initial_settings
    return RunView(
        folder=folder,
        name=shown_name(run.name, folder.run_id),
        status=status,
        run=run,
        device=read_device(run.device),
        settings=settings,
        initial_settings=initial_settings,
        history=history,
        commands=commands,
        acks=acks,
        problem=None,
        script=request.script,
        declared=declared,
        unavailable=unavailable,
        imported=request.imported,
        has_ranks=not request.part.is_alone,
    )


def read_commands(folder: RunFolder) -> list[CommandRow]:
    """Read the requests to a run, oldest first; empty if its control file cannot be read."""
    try:
        with ControlLog(folder) as control:
            return control.newest_commands()
    except LogError:
        return []


def newest_command_id(folder: RunFolder) -> str:
    """Return the id of the newest request to a run; empty without one, or if none can be read."""
    commands = read_commands(folder)
    return commands[-1].command_id if commands else ""


def find(run: str) -> RunFolder:
    """Return the folder of the run in an address. Raises UnknownRunError."""
    return home().find(run)


def delete_runs(run_ids: Iterable[str]) -> list[str]:
    """Delete ended runs, and return why others were kept, one sentence each."""
    return _for_each(run_ids, supervisor().delete)


def tag_runs(run_ids: Iterable[str], add: Sequence[str], remove: Sequence[str]) -> list[str]:
    """Add and remove tags of runs, and return why some are unchanged, one sentence each."""
    return _for_each(run_ids, lambda folder: change_tags(folder, add, remove))


def set_labels(run_id: str, before: Labels, after: Labels) -> None:
    """Write what differs between the labels of a run that were shown and those with a person's changes.
    Raises StepscopeError."""
    supervisor().check_may_write()
    folder = find(run_id)
    change_tags(folder, set(after.tags) - set(before.tags), set(before.tags) - set(after.tags))
    if after.note != before.note:
        set_note(folder, after.note)


def _for_each(run_ids: Iterable[str], act: Callable[[RunFolder], object]) -> list[str]:
    supervisor().check_may_write()
    problems = []
    for run_id in run_ids:
        try:
            act(find(run_id))
        except StepscopeError as error:
            problems.append(str(error))
    return problems


def newest() -> RunFolder | None:
    """Return the run to show by default: the newest active one, else the newest."""
    folders = home().newest(_MAX_CHECKED)
    for folder in folders:
        run = supervisor().summary(folder)
        if not run.status.state.is_over and not run.is_simulated:
            return folder
    return folders[0] if folders else None


def process_limit_bytes(view: RunView) -> int | None:
    """Return the memory that the limit of the process (`ulimit`) leaves to the run's heap on the CPU, as of
    its start; None without one, and in logs of versions that did not record it."""
    recorded = None if view.run is None else read_versions(view.run.versions).get("process_limit_bytes")
    return recorded if type(recorded) is int else None


def memory_limit(view: RunView) -> tuple[int, str] | None:
    """Return the maximum memory available to the run in bytes, and the source of this limit."""
    cap_bytes = None if view.settings is None else view.settings.values.memory_cap_bytes
    limits = [(cap_bytes, "cap"), (process_limit_bytes(view), "limit of allocated (ulimit)")]
    if stated := [(limit_bytes, what) for limit_bytes, what in limits if limit_bytes is not None]:
        return min(stated)
    if view.device is not None and view.device.memory_bytes is not None:
        what = "host memory" if view.device.kind is DeviceKind.CPU else "device memory"
        return view.device.memory_bytes, what
    return None


def load_demo() -> None:
    """Write every simulated run into the home, and add the recorded ones. Raises StepscopeError."""
    supervisor().check_may_write()
    list(add_all(home()))
    list(write_all(home()))
