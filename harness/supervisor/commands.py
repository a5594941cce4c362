"""Commands to a run before they are sent: whether their values can be, and whether anybody can obey."""

from collections.abc import Mapping
from typing import Any

from harness.config import parse, spec_of
from harness.errors import SettingError
from harness.records import CommandKind
from harness.store.folder import RunFolder
from harness.supervisor.inspection import Look
from harness.supervisor.processes import stranger_sentence

_DEEDS = {
    CommandKind.SET: "change settings of",
    CommandKind.EMPTY_CACHE: "empty the cache of",
    CommandKind.SNAPSHOT: "take a snapshot of",
    CommandKind.PROFILE: "profile",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.STOP: "stop",
}


def no_process_sentence(folder: RunFolder, seen: Look, kind: CommandKind) -> str:
    """Why a run without a process takes no command of this kind."""
    simulated = seen.log.run is not None and seen.log.run.simulated
    why = "simulated" if simulated else seen.status.state.value.replace("_", " ")
    left_alone = stranger_sentence(folder) if kind is CommandKind.STOP else ""
    return (
        f"{seen.request.name!r} is {why}: there is no process to {_DEEDS[kind]}. "
        f"{left_alone or '`stepscope list` shows which runs are live.'}"
    )


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of settings that can be sent. Raises SettingError; the harness checks them again."""
    if not values:
        raise SettingError("", "Nothing to set: give name=value.")
    for name in values:
        spec = spec_of(name)
        if not spec.is_live:
            raise SettingError(
                spec.name, f"{spec.name} cannot change while a run goes on; start a new run with it."
            )
    checked = parse(values).model_dump(mode="json")
    return {spec_of(name).name: checked[spec_of(name).name] for name in values}
