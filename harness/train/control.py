"""Carries out, between two steps, what people ask of a live run, and decides when the run is over."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from harness.config import SPECS, change, check_device
from harness.device.protocol import Device
from harness.errors import SettingError, StepscopeError, UsageError
from harness.records import (
    AckRow,
    CommandKind,
    CommandRow,
    CommandState,
    DeviceKind,
    EventKind,
    EventRow,
    MemoryReading,
    RunState,
    SettingsRow,
    Severity,
    StepFlag,
)
from harness.selection import check_fit
from harness.settings import Settings
from harness.store.appender import Row
from harness.train import labels
from harness.train.inbox import Inbox
from harness.train.memory import MemoryWatch
from harness.train.timing import StepTimer
from harness.train.workload import Workload

WARM_UP_STEPS = 5
"""Steps at the start that are left out of statistics: lazy initialisation, allocator growth, cuDNN search."""

TRANSITION_STEPS = 5
"""Steps after a change that are left out of statistics."""

CAP_AFTER_STEPS = 2
"""On the CPU a cap is only safe once threads and workspaces exist: set cold, it aborts the process."""


class Journal(Protocol):
    """Where what happened is written down; never blocks."""

    def put(self, row: Row) -> None:
        """Record a row."""
        ...

    def set_state(self, state: RunState, message: str, timeout_s: float = ...) -> bool:
        """Record that the run is now in `state`; waits at most `timeout_s` for the disk."""
        ...


@dataclass
class Marks:
    """What is written beside every step: which settings are in effect, and what is special about it."""

    settings_version: int = 1
    flags: int = int(StepFlag.WARM_UP)


class Ending(NamedTuple):
    """Why the loop ended."""

    state: RunState
    message: str


class Controller:
    """Stands between two steps. When nothing was asked for, `proceed` costs well under a microsecond.

    Attributes:
        ending: why the run ended, once it has.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        journal: Journal,
        inbox: Inbox,
        marks: Marks,
        timer: StepTimer,
        memory: MemoryWatch,
        clock_ns: Callable[[], int],
    ) -> None:
        self._workload = workload
        self._device = device
        self._journal = journal
        self._inbox = inbox
        self._marks = marks
        self._timer = timer
        self._memory = memory
        self._clock_ns = clock_ns
        self._began_ns = clock_ns()
        self._paused_ns = 0
        self._paused = False
        self._unsettled_until = WARM_UP_STEPS
        self._unsettled_flag = StepFlag.WARM_UP
        self._is_quiet = False
        self._cap_is_due = device.facts.kind is not DeviceKind.CPU
        self._limits()
        self.ending: Ending | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the run waits for a resume."""
        return self._paused

    def proceed(self, step: int) -> bool:
        """Carry out what was asked for; whether to take the step numbered `step`."""
        inbox = self._inbox
        if self._is_quiet and not inbox.commands and inbox.stop_message is None and step <= self._last_step:
            return True
        if inbox.commands:
            self._empty_inbox(step)
        if self._paused:
            self._wait(step)
        if inbox.stop_message is not None:
            self.ending = Ending(RunState.STOPPED, inbox.stop_message)
        elif step > self._last_step:
            self.ending = Ending(RunState.FINISHED, _all_steps(step - 1, self._last_step))
        elif self._budget_ns is not None and self._trained_ns() >= self._budget_ns:
            seconds = self._workload.settings.max_seconds
            self.ending = Ending(RunState.FINISHED, f"Trained for {seconds:g} s, as asked.")
        if self.ending is not None:
            return False
        if not self._cap_is_due and step > CAP_AFTER_STEPS:
            self._cap_is_due = True
            if self._workload.settings.memory_cap_gib is not None:
                self._cap(self._workload.settings)
        is_settled = step > self._unsettled_until
        self._marks.flags = 0 if is_settled else int(self._unsettled_flag)
        self._is_quiet = is_settled and self._cap_is_due and self._budget_ns is None
        return True

    def _limits(self) -> None:
        settings = self._workload.settings
        self._last_step = sys.maxsize if settings.max_steps is None else settings.max_steps
        self._budget_ns = None if settings.max_seconds is None else int(settings.max_seconds * 1e9)

    def _trained_ns(self) -> int:
        return self._clock_ns() - self._began_ns - self._paused_ns

    def _empty_inbox(self, step: int) -> None:
        """Carry out every command up to a stop; what comes after it expires."""
        inbox = self._inbox
        while inbox.commands and inbox.stop_message is None:
            self._carry_out(inbox.commands.popleft(), step)
        self._timer.restart()

    def _carry_out(self, command: CommandRow, step: int) -> None:
        match command.kind:
            case CommandKind.SET:
                self._set(command, step)
            case CommandKind.EMPTY_CACHE:
                self._empty_cache(command, step)
            case CommandKind.PAUSE:
                self._pause(command, step)
            case CommandKind.RESUME:
                self._resume(command, step)
            case CommandKind.STOP:
                self._answer(command, CommandState.APPLIED, step, "Stopping.")
                self._inbox.stop(f"Stopped by request from {command.source}.")
            case unknown:
                self._answer(
                    command, CommandState.REJECTED, step, f"This Stepscope knows no command {unknown!r}."
                )

    def _set(self, command: CommandRow, step: int) -> None:
        before = self._workload.settings
        try:
            after, changes = self._validated(before, _wanted(command.payload))
            if changes:
                self._put_into_effect(after)
        except StepscopeError as error:
            self._answer(command, CommandState.REJECTED, step, str(error))
            return
        except (RuntimeError, OSError, ValueError, MemoryError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._answer(command, CommandState.REJECTED, step, f"It could not be put into effect: {reason}")
            return
        if not changes:
            self._answer(command, CommandState.APPLIED, step, "It was so already; nothing changed.")
            return
        self._record_change(command, before, after, changes, step)

    def _validated(self, before: Settings, wanted: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
        after = change(before, wanted)
        changes = {
            name: getattr(after, name) for name in SPECS if getattr(after, name) != getattr(before, name)
        }
        for name in changes:
            if not SPECS[name].is_live:
                raise SettingError(
                    name, f"{SPECS[name].label} cannot change while a run goes on; start a new run."
                )
        check_device(after, self._device.facts, changes)
        check_fit(after)
        return after, changes

    def _put_into_effect(self, after: Settings) -> None:
        before = self._workload.settings
        is_new_cap = after.memory_cap_gib != before.memory_cap_gib
        if is_new_cap and not self._cap_is_due:
            raise SettingError(
                "memory_cap_gib",
                f"A memory cap can be set after step {CAP_AFTER_STEPS}, once threads and workspaces exist; "
                "ask again in a moment.",
            )
        self._workload.reconfigure(after)
        if is_new_cap:
            try:
                self._cap(after)
            except BaseException:
                self._workload.reconfigure(before)
                raise
        self._limits()

    def _cap(self, settings: Settings) -> None:
        gib = settings.memory_cap_gib
        self._device.cap_memory(None if gib is None else int(gib * 2**30))

    def _record_change(
        self, command: CommandRow, before: Settings, after: Settings, changes: dict[str, Any], step: int
    ) -> None:
        self._marks.settings_version += 1
        self._unsettle(step)
        values, old = after.model_dump(mode="json"), before.model_dump(mode="json")
        new = {name: values[name] for name in changes}
        self._journal.put(
            SettingsRow(
                self._marks.settings_version,
                step,
                self._clock_ns(),
                json.dumps(values),
                json.dumps(new),
                command.command_id,
            )
        )
        message = labels.sentence(old, new)
        detail = {
            "from": {name: old[name] for name in new},
            "to": new,
            "version": self._marks.settings_version,
        }
        self._event(EventKind.SETTING, labels.marker(new), message, detail, step, command)
        self._answer(command, CommandState.APPLIED, step, message)

    def _empty_cache(self, command: CommandRow, step: int) -> None:
        if not self._device.facts.can_trim:
            reason = f"{self._device.facts.name} has no cache that could be emptied here."
            self._answer(command, CommandState.REJECTED, step, reason)
            return
        before = self._device.read_memory()
        began_ns = self._clock_ns()
        self._device.empty_cache()
        took_ns = self._clock_ns() - began_ns
        after = self._device.read_memory()
        freed = _freed_bytes(before, after)
        message = (
            "Emptied the cache."
            if freed is None
            else f"Gave back {freed / 2**20:,.1f} MiB of reserved memory."
        )
        detail = {"freed_bytes": freed, "took_ns": took_ns}
        self._unsettle(step)
        self._event(EventKind.EMPTY_CACHE, "empty_cache()", message, detail, step, command)
        self._answer(command, CommandState.APPLIED, step, message)

    def _pause(self, command: CommandRow, step: int) -> None:
        if not self._paused:
            self._paused = True
            self._journal.set_state(RunState.PAUSED, f"Paused before step {step:,}.", timeout_s=0)
        self._answer(command, CommandState.APPLIED, step, "Paused.")

    def _resume(self, command: CommandRow, step: int) -> None:
        if self._paused:
            self._paused = False
            self._unsettle(step)
            self._journal.set_state(RunState.RUNNING, "Resumed.", timeout_s=0)
        self._answer(command, CommandState.APPLIED, step, "Resumed.")

    def _wait(self, step: int) -> None:
        """Wait, doing nothing but answering commands, until resumed or stopped."""
        began_ns = self._clock_ns()
        while self._paused and self._inbox.stop_message is None:
            self._inbox.wait(1.0)
            self._empty_inbox(step)
        self._paused_ns += self._clock_ns() - began_ns
        self._timer.restart()

    def _unsettle(self, step: int) -> None:
        """Flag the steps from `step` on as transition, and read the memory of each and of the first after."""
        self._memory.restart(TRANSITION_STEPS + 1)
        if step > self._unsettled_until:
            self._unsettled_flag = StepFlag.TRANSITION
        self._unsettled_until = max(self._unsettled_until, step + TRANSITION_STEPS - 1)

    def _event(
        self,
        kind: EventKind,
        label: str,
        message: str,
        detail: dict[str, Any],
        step: int,
        command: CommandRow,
    ) -> None:
        self._journal.put(
            EventRow(
                self._clock_ns(),
                step,
                kind,
                Severity.INFO,
                label,
                message,
                json.dumps(detail),
                command.command_id,
            )
        )

    def _answer(self, command: CommandRow, state: CommandState, step: int, message: str) -> None:
        self._journal.put(AckRow(command.command_id, state, step, self._clock_ns(), message))


def expire(inbox: Inbox, journal: Journal, step: int, t_ns: int) -> None:
    """Answer what is still in the inbox when the run has ended."""
    while inbox.commands:
        command = inbox.commands.popleft()
        message = "The run ended before this could be applied."
        journal.put(AckRow(command.command_id, CommandState.EXPIRED, step, t_ns, message))


def _wanted(payload: str) -> dict[str, Any]:
    """The settings asked for by a SET; raises UsageError when `payload` is not a JSON object."""
    try:
        wanted = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The request is not JSON ({error}); nothing was changed.") from None
    if not isinstance(wanted, dict):
        raise UsageError(f"The request is {payload[:80]!r}, not an object of settings; nothing was changed.")
    return wanted


def _freed_bytes(before: MemoryReading, after: MemoryReading) -> int | None:
    if before.reserved_bytes is None or after.reserved_bytes is None:
        return None
    return max(0, before.reserved_bytes - after.reserved_bytes)


def _all_steps(taken: int, asked: int) -> str:
    if taken == asked:
        return f"Took all {asked:,} steps."
    return f"Took {taken:,} steps; it was asked to end at {asked:,}."
