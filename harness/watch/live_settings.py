"""The settings in effect in a live run: validates requested changes, applies and records them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from harness import words
from harness.errors import SettingError, StepscopeError, UsageError
from harness.records.run import (
    CommandKind,
    CommandRow,
    CommandState,
    DeviceKind,
    EventKind,
    EventRow,
    SettingsRow,
    Severity,
)
from harness.settings import Settings, labels
from harness.settings.profile_steps import check_steps_ahead
from harness.settings.spec import SPECS, change, change_title, check_device
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.recent_changes import AppliedChange

# On the CPU a cap is only safe once threads and workspaces exist: set cold, it aborts the process.
CAP_AFTER_STEPS = 2
_NO_WORKERS = "prefetch_factor has no effect without loader workers: set num_workers too."
# What may be raised where a change is put into effect.
_FAILURES = (StepscopeError, RuntimeError, OSError, ValueError, MemoryError)


class Adjustable(Protocol):
    """A training whose settings can change between two steps."""

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        ...

    def validate(self, settings: Settings, changed: Sequence[str]) -> None:
        """Raise SettingError when `settings`, which differ in `changed`, cannot be put into effect."""
        ...

    def reconfigure(self, settings: Settings) -> str | None:
        """Put `settings` into effect; on any error everything is as before and the error is raised. Return a
        sentence to add to the answer, if any."""
        ...

    def recorded(self, settings: Settings) -> dict[str, Any]:
        """Return the values of `settings` for the log, as JSON values."""
        ...


class OtherProcesses(Protocol):
    """The other processes of a run, where a change is in effect on all or on none."""

    def settle(self, command_id: str, problem: str | None) -> str | None:
        """Say that a change is in effect here, or why it is not; return the sentence for a change that is to
        be reverted because of another process."""
        ...


class LiveChange(NamedTuple):
    """A change of settings that took effect before `step`; `message` describes it in a sentence."""

    before: Settings
    after: Settings
    step: int
    version: int
    command_id: str | None
    message: str

    @property
    def names(self) -> list[str]:
        """The settings that changed."""
        return _differing(self.before, self.after)


class _Switched(NamedTuple):
    """The versions of a measurement's settings, by whether they are its trial. `newest` is its command, and
    the newest version of all when the last of them began."""

    newest: tuple[str, int]
    versions: dict[bool, int]


class LiveSettings(StepAction):
    """Changes the settings of `workload` between two steps, on the training thread.

    Attributes:
        changes: the requested changes, in order, without those undone.
        trial: the change of a measurement that is in effect for now; None without one.
        cap_is_due: whether a memory cap may be set by now.
    """

    commands = frozenset({CommandKind.SET})

    def __init__(
        self, context: RunContext, workload: Adjustable, others: OtherProcesses | None = None
    ) -> None:
        self._context = context
        self._others = others
        self._workload = workload
        self._device = device = context.device
        self._journal = context.journal
        self._marks = context.marks
        self._clock_ns = context.clock_ns
        self._switched = _Switched(("", 0), {})
        self.changes: list[LiveChange] = []
        self.trial: LiveChange | None = None
        self.cap_is_due = device.facts.kind is not DeviceKind.CPU
        # Of the steps before the newest request.
        self._highest_peak_bytes: int | None = None

    @property
    def current(self) -> Settings:
        """The settings in effect."""
        return self._workload.settings

    @property
    def is_busy(self) -> bool:
        """The cap that the run was started with is still to be set."""
        return not self.cap_is_due

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Apply the settings of `command` before the next step, or reject it with the reason."""
        step, answer = boundary.step, self._context.answer
        self._highest_peak_bytes = boundary.highest_peak_bytes
        try:
            change = self.apply(command.payload, step, command.command_id)
        except _FAILURES as error:
            answer(command.command_id, CommandState.REJECTED, step, _sentence(error))
            return
        if change is None:
            answer(
                command.command_id,
                CommandState.APPLIED,
                step,
                "These values are already in effect; nothing changed.",
            )
            return
        boundary.changed(step)
        answer(command.command_id, CommandState.APPLIED, step, change.message)

    def before_step(self, boundary: Boundary) -> None:
        """Set the cap that the run was started with, once it is safe."""
        if not self.cap_is_due and boundary.step > CAP_AFTER_STEPS:
            self.cap_is_due = True
            if self.current.memory_cap_gib is not None:
                self.cap()

    def apply(self, payload: str, step: int, command_id: str) -> LiveChange | None:
        """Apply the settings in `payload`, a JSON object, before `step`; None if nothing changes.

        Raises StepscopeError for invalid settings, and torch's error if applying them fails; the settings
        before are then in effect.
        """
        before = self.current
        try:
            after, changed = self._validated(before, _requested_values(payload))
            if "profile_at" in changed:
                check_steps_ahead(after.profile_at, step)
            remark = self._apply(after) if changed else None
        except _FAILURES as error:
            if self._others is not None:
                self._others.settle(command_id, _sentence(error))
            raise
        if self._others is not None and (problem := self._others.settle(command_id, None)) is not None:
            if changed:
                self._apply(before)
            raise StepscopeError(problem)
        if not changed:
            return None
        change = self._record(before, after, step, command_id, remark=remark)
        self.changes.append(change)
        return change

    def undo(self, change: LiveChange, step: int, why: str) -> LiveChange:
        """Restore the values before `change`, before `step`; as `impose`."""
        undone = self.impose({name: getattr(change.before, name) for name in change.names}, step, why)
        if change is self.trial:
            self.trial = None
        else:
            self.changes.remove(change)
        return undone

    def impose(self, values: Mapping[str, Any], step: int, why: str) -> LiveChange:
        """Apply `values` without a request, with `why` before the message; raises as `apply`."""
        before = self.current
        after, _ = self._validated(before, values)
        remark = self._apply(after)
        return self._record(before, after, step, None, why, remark)

    def arms(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings that `values` would change, as they are and as they would be, as JSON values.
        Raises StepscopeError when they cannot be put into effect."""
        before = self.current
        after, changed = self._validated(before, values)
        old, new = self._workload.recorded(before), self._workload.recorded(after)
        return {name: old[name] for name in changed}, {name: new[name] for name in changed}

    def switch(self, values: Mapping[str, Any], step: int, command_id: str, *, is_trial: bool) -> None:
        """Apply `values` for a measurement before `step`, without an event. A trial is undone when memory
        runs out, whatever the policy. Both sides of a measurement have one version of the settings each,
        however often it switches, unless another version begins in between. Raises as `apply`."""
        before = self.current
        after, changed = self._validated(before, values)
        self._apply(after)
        switched = (
            self._switched if self._switched.newest == (command_id, self._marks.newest_version) else None
        )
        version = None if switched is None else switched.versions.get(is_trial)
        # Readers take the newest version for the one in effect after a measurement.
        if version is None or not (is_trial or version == self._marks.newest_version):
            recorded = self._workload.recorded(after)
            version = self._put_version({name: recorded[name] for name in changed}, step, command_id)
            versions = {} if switched is None else switched.versions
            self._switched = _Switched((command_id, version), {**versions, is_trial: version})
        self._marks.settings_version = version
        if is_trial:
            old, values_after = self._workload.recorded(before), self._workload.recorded(after)
            new = {name: values_after[name] for name in changed}
            text = f"{labels.sentence_on_values(old, new)[:-1]} for a measurement"
            self._notice(old, new, step, text, command_id)
        else:
            self._context.changes.undone(command_id)
        self.trial = LiveChange(before, after, step, version, command_id, "") if is_trial else None

    def cap(self) -> None:
        """Set the memory cap in effect, or lift it when there is none, or none yet. Raises SettingError when
        it is below what is in use."""
        self._device.cap_memory(self.current.memory_cap_bytes if self.cap_is_due else None)

    def _validated(self, before: Settings, values: Mapping[str, Any]) -> tuple[Settings, list[str]]:
        after = change(before, values)
        changed = _differing(before, after)
        for name in changed:
            if not SPECS[name].is_live:
                raise SettingError(
                    name, f"{SPECS[name].label} cannot change while a run goes on; start a new run."
                )
        check_device(after, self._device.facts, changed)
        # Of a setting that the run does not have no value is in effect.
        names = self._workload.recorded(before)
        self._workload.validate(after, [*changed, *(name for name in values if name not in names)])
        return after, changed

    def _apply(self, after: Settings) -> str | None:
        before = self.current
        is_new_cap = after.memory_cap_gib != before.memory_cap_gib
        if is_new_cap and not self.cap_is_due:
            raise SettingError(
                "memory_cap_gib",
                f"A memory cap can be set after step {CAP_AFTER_STEPS}, once threads and workspaces exist; "
                "send the request again in a moment.",
            )
        remark = self._workload.reconfigure(after)
        if is_new_cap:
            try:
                self.cap()
            except BaseException:
                self._workload.reconfigure(before)
                raise
            remark = _joined(remark, self._margin(after))
        if after.prefetch_factor != before.prefetch_factor and not after.num_workers:
            remark = _joined(remark, _NO_WORKERS)
        return remark

    def _margin(self, after: Settings) -> str | None:
        """Return the sentence on what a new cap leaves to the steps before it; None without a cap or peak."""
        cap_bytes, peak_bytes = after.memory_cap_bytes, self._highest_peak_bytes
        if cap_bytes is None or not peak_bytes:
            return None
        peak = f"The highest peak since the last change was {words.size(peak_bytes)}"
        if cap_bytes > peak_bytes:
            return f"{peak}: the cap leaves {words.size(cap_bytes - peak_bytes)} above it."
        return (
            f"{peak}, {words.size(peak_bytes - cap_bytes)} more than the cap: steps as large as that one run "
            "out of memory."
        )

    def _record(
        self,
        before: Settings,
        after: Settings,
        step: int,
        command_id: str | None,
        why: str = "",
        remark: str | None = None,
    ) -> LiveChange:
        values, old = self._workload.recorded(after), self._workload.recorded(before)
        new = {name: values[name] for name in _differing(before, after)}
        version, now_ns = self._put_version(new, step, command_id), self._clock_ns()
        message = f"{why}{labels.sentence(old, new)}{f' {remark}' if remark else ''}"
        self._put_event(now_ns, step, {name: old[name] for name in new}, new, version, message, command_id)
        self._notice(old, new, step, f"{why}{labels.sentence_on_values(old, new)}", command_id)
        return LiveChange(before, after, step, version, command_id, message)

    def _put_event(
        self,
        now_ns: int,
        step: int,
        before: Mapping[str, Any],
        new: Mapping[str, Any],
        version: int,
        message: str,
        command_id: str | None,
    ) -> None:
        """Write the event of a change from `before` to `new`, of the same settings."""
        detail = json.dumps({"from": before, "to": new, "version": version})
        kind, severity, title = EventKind.SETTING, Severity.INFO, change_title(new)
        self._journal.put(EventRow(now_ns, step, kind, severity, title, message, detail, command_id))

    def _notice(
        self, before: Mapping[str, Any], new: Mapping[str, Any], step: int, text: str, command_id: str | None
    ) -> None:
        """Note the change for an error that may follow it. `before` may have further values."""
        change = AppliedChange(step, {name: before[name] for name in new}, new, text, command_id)
        self._context.changes.add(self._completed(change))

    def _completed(self, change: AppliedChange) -> AppliedChange:
        """Return `change` with what the training knows of it."""
        return change

    def _put_version(self, new: Mapping[str, Any], step: int, command_id: str | None) -> int:
        """Record a new version of the settings in effect, of which `new` changed."""
        version = self._marks.begin_version()
        values = json.dumps(self._workload.recorded(self.current))
        self._journal.put(SettingsRow(version, step, self._clock_ns(), values, json.dumps(new), command_id))
        return version


def _joined(*sentences: str | None) -> str | None:
    return " ".join(filter(None, sentences)) or None


def _sentence(error: BaseException) -> str:
    if isinstance(error, StepscopeError):
        return str(error)
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"It could not be applied: {reason}"


def _differing(before: Settings, after: Settings) -> list[str]:
    return [name for name in SPECS if getattr(before, name) != getattr(after, name)]


def _requested_values(payload: str) -> dict[str, Any]:
    """Return the settings in a SET command; raises UsageError if `payload` is not a JSON object."""
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The request is not JSON ({error}); nothing was changed.") from None
    if not isinstance(values, dict):
        raise UsageError(f"The request is {payload[:80]!r}, not an object of settings; nothing was changed.")
    return values
