"""Validation of commands to a run before they are sent."""

from collections.abc import Mapping
from typing import Any

from harness.errors import SettingError
from harness.records.run import CommandKind
from harness.settings.spec import parse, spec_of
from harness.store.folder import RunFolder
from harness.supervisor.inspection import RunInspection
from harness.supervisor.processes import stranger_sentence

_ACTIONS = {
    CommandKind.SET: "change settings of",
    CommandKind.EMPTY_CACHE: "empty the cache of",
    CommandKind.SNAPSHOT: "take a snapshot of",
    CommandKind.PROFILE: "profile",
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


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate changes of settings. Raises SettingError; the run validates them again."""
    if not values:
        raise SettingError("", "Nothing to set: give name=value.")
    for name in values:
        spec = spec_of(name)
        if not spec.is_live:
            raise SettingError(
                spec.name, f"{spec.name} cannot change in a live run; start a new run with it."
            )
    checked = parse(values).model_dump(mode="json")
    return {spec_of(name).name: checked[spec_of(name).name] for name in values}
