"""Settings that a script declares for itself, changed in the live run like those of Stepscope."""

import json
from collections.abc import Mapping
from typing import Any

from harness.attach.loaders import LOADER_SETTINGS
from harness.attach.switches import ScriptSwitches
from harness.errors import SettingError
from harness.files.plain_json import json_object
from harness.records.script import DeclaredSetting, SettingValue
from harness.watch.context import RunContext
from harness.watch.live_settings import LiveChange, LiveSettings, OtherProcesses
from harness.watch.recent_changes import AppliedChange

_MOST = 100


class ScriptLiveSettings(LiveSettings):
    """The settings of Stepscope, and those that the script declares.

    Attributes:
        declared: the declarations, by name.
    """

    def __init__(
        self, context: RunContext, switches: ScriptSwitches, others: OtherProcesses | None = None
    ) -> None:
        super().__init__(context, switches, others)
        self._switches = switches
        self.declared: dict[str, DeclaredSetting] = {}
        changes, loaders = context.changes, switches.loaders
        changes.names_flags = False
        loaders.took_effect = lambda: changes.took_effect(context.last_step + 1)

    def declare(self, setting: DeclaredSetting, step: int) -> None:
        """Add a setting with its default; one declared before has its value further on if it can have it.
        Raises ValueError for one too many."""
        if len(self.declared) >= _MOST and setting.name not in self.declared:
            raise ValueError(
                f"{setting.name!r} would be setting number {_MOST + 1}; declare at most {_MOST}."
            )
        value = self._switches.own.get(setting.name, setting.default)
        try:
            value = setting.check(value)
        except ValueError:
            value = setting.default
        if self.declared.get(setting.name) == setting and self._switches.own.get(setting.name) == value:
            return
        self.declared[setting.name] = setting
        self._journal.put(setting.to_row())
        self._switches.own[setting.name] = value
        self._put_version({}, step, None)

    def value(self, name: str) -> SettingValue:
        """Return the value in effect."""
        return self._switches.own[name]

    def apply(self, payload: str, step: int, command_id: str) -> LiveChange | None:
        """Put what `payload` requests into effect before `step`, see `LiveSettings.apply`."""
        try:
            values = json_object(payload)
        except ValueError:
            return super().apply(payload, step, command_id)
        own = {name: self._checked(name, values.pop(name)) for name in self.declared if name in values}
        change = super().apply(json.dumps(values), step, command_id) if values or not own else None
        before = {name: self._switches.own[name] for name in own if own[name] != self._switches.own[name]}
        if not before:
            return change
        self._switches.own.update(own)
        return self._record_own(before, step, command_id, change)

    def arms(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Like `LiveSettings.arms`, also for settings that the script declared."""
        own = self._own(values)
        if not own:
            return super().arms(values)
        before = self._switches.own
        changed = [name for name in own if own[name] != before[name]]
        return {name: before[name] for name in changed}, {name: own[name] for name in changed}

    def switch(self, values: Mapping[str, Any], step: int, command_id: str, *, is_trial: bool) -> None:
        """Like `LiveSettings.switch`, also for settings that the script declared."""
        own = self._own(values)
        if not own:
            super().switch(values, step, command_id, is_trial=is_trial)
            return
        before = dict(self._switches.own)
        self._switches.own.update(own)
        self._put_version(own, step, command_id)
        if is_trial:
            text = ", ".join(f"{name} {_text(before[name])} → {_text(own[name])}" for name in own)
            self._notice(before, own, step, f"{text} for a measurement", command_id)
        else:
            self._context.changes.undone(command_id)

    def _completed(self, change: AppliedChange) -> AppliedChange:
        """Return `change` with when it takes effect, and when a batch size has shown: the last batch of a
        pass may be a smaller one."""
        loaders = self._switches.loaders
        within = loaders.batches_in_pass if "batch_size" in change.after else None
        is_waiting = loaders.awaited is not None and not change.after.keys().isdisjoint(LOADER_SETTINGS)
        shows_within = max(change.shows_within, within or 0)
        return change._replace(shows_within=shows_within, is_waiting=is_waiting)

    def _own(self, values: Mapping[str, Any]) -> dict[str, SettingValue]:
        """Return the values of settings that the script declared. Raises SettingError for a mixture."""
        own = {name: self._checked(name, value) for name, value in values.items() if name in self.declared}
        if own and len(own) < len(values):
            raise SettingError(
                next(iter(own)),
                "Measure the script's own settings apart from those of Stepscope.",
            )
        return own

    def _checked(self, name: str, value: object) -> SettingValue:
        try:
            return self.declared[name].check(value)
        except ValueError as error:
            raise SettingError(name, str(error)) from None

    def _record_own(
        self, before: dict[str, SettingValue], step: int, command_id: str, change: LiveChange | None
    ) -> LiveChange:
        new = {name: self._switches.own[name] for name in before}
        version, now_ns = self._put_version(new, step, command_id), self._clock_ns()
        message = f"{', '.join(f'{name} {_text(before[name])} → {_text(new[name])}' for name in new)}."
        self._put_event(now_ns, step, before, new, version, message, command_id)
        self._notice(before, new, step, message, command_id)
        if change is not None:
            message = f"{change.message} {message}"
        return LiveChange(self.current, self.current, step, version, command_id, message)


def _text(value: SettingValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
