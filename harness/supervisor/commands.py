"""Validation of commands to a run before they are sent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import LogError, LogMissingError, SettingError
from harness.records.run import CommandKind
from harness.records.script import DeclaredSetting, SettingValue
from harness.settings.spec import SPECS, parse, spec_of
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.inspection import RunInspection
from harness.supervisor.processes import stranger_sentence

_ACTIONS = {
    CommandKind.SET: "change settings of",
    CommandKind.EMPTY_CACHE: "empty the cache of",
    CommandKind.SNAPSHOT: "take a snapshot of",
    CommandKind.PROFILE: "profile",
    CommandKind.MEASURE: "measure a setting of",
    CommandKind.END_MEASUREMENT: "end a measurement of",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.STOP: "stop",
}


def no_process_sentence(folder: RunFolder, inspection: RunInspection, kind: CommandKind) -> str:
    """Return the reason that a run without a process accepts no command of this kind."""
    simulated = inspection.log.run is not None and inspection.log.run.simulated
    why = "simulated" if simulated else inspection.status.state.value.replace("_", " ")
    stranger = stranger_sentence(folder) if kind is CommandKind.STOP else ""
    return (
        f"{inspection.request.name!r} is {why}: there is no process to {_ACTIONS[kind]}. "
        f"{stranger or '`stepscope list` shows which runs are live.'}"
    )


def checked_changes(
    values: Mapping[str, Any], declared: Callable[[], Sequence[DeclaredSetting]] | None = None
) -> dict[str, Any]:
    """Validate changes of settings. Raises SettingError; the run validates them again. `declared` returns the
    settings that the run's script declares, which may have texts as values; it is called for settings that
    Stepscope does not have, and its LogError goes on up. None: the run has no script."""
    if not values:
        raise SettingError("", "Nothing to set: give name=value.")
    own: dict[str, Any] = {}
    settings: dict[str, DeclaredSetting] | None = None
    if declared is not None and not values.keys() <= SPECS.keys():
        settings = {setting.name: setting for setting in declared()}
        own = {name: _checked(settings[name], value) for name, value in values.items() if name in settings}
    values = {name: value for name, value in values.items() if name not in own}
    for name in values:
        spec = spec_of(name, None if settings is None else settings.keys())
        if not spec.is_live:
            raise SettingError(
                spec.name, f"{spec.name} cannot change in a live run; start a new run with it."
            )
    checked = parse(values).model_dump(mode="json")
    return {spec_of(name).name: checked[spec_of(name).name] for name in values} | own


def declared_settings(folder: RunFolder) -> list[DeclaredSetting]:
    """Return the settings that the script of a run declares; none as long as it has no log. Raises LogError
    if that cannot be read."""
    try:
        with LogReader(folder.log) as log:
            return log.script.declared_settings()
    except LogMissingError:
        return []
    except LogError as error:
        raise LogError(f"The settings that the script declares cannot be read: {error}") from error


def _checked(setting: DeclaredSetting, value: object) -> SettingValue:
    try:
        return setting.parse(value) if isinstance(value, str) else setting.check(value)
    except ValueError as error:
        raise SettingError(setting.name, str(error)) from None
