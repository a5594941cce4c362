"""Carries out, between two steps, what people ask of a live run, and decides when the run is over."""

import json
import sys
from collections.abc import Callable
from typing import NamedTuple

from harness.device.protocol import Device
from harness.errors import StepscopeError
from harness.records import (
    AckRow,
    CommandKind,
    CommandRow,
    CommandState,
    EventKind,
    EventRow,
    RunState,
    Severity,
    StepFlag,
)
from harness.train.emptying import empty_cache
from harness.train.inbox import Inbox
from harness.train.inspection import Inspection
from harness.train.journal import Journal, Marks
from harness.train.live_settings import LiveSettings
from harness.train.memory import MemoryWatch
from harness.train.profiles import Profiles
from harness.train.snapshots import Snapshots
from harness.train.timing import StepTimer
from harness.train.workload import Workload

WARM_UP_STEPS = 5
"""Steps at the start that are left out of statistics: lazy initialisation, allocator growth, cuDNN search."""

TRANSITION_STEPS = 5
"""Steps after a change that are left out of statistics."""


class Ending(NamedTuple):
    """Why the loop ended."""

    state: RunState
    message: str


class Controller:
    """Stands between two steps. When nothing was asked for, `proceed` costs well under a microsecond.

    Attributes:
        ending: why the run ended, once it has.
        live: changes the settings in effect.
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
        snapshots: Snapshots | None = None,
        profiles: Profiles | None = None,
        inspection: Inspection | None = None,
        step_finished: Callable[[int], None] = lambda _step: None,
    ) -> None:
        """`snapshots` and `profiles` take them; None where nobody asks for any. `inspection` looks at the
        last steps that statistics leave out. `step_finished` hears of every step, observed or not."""
        self._step_finished = step_finished
        self._workload = workload
        self._device = device
        self._journal = journal
        self._inbox = inbox
        self._marks = marks
        self._timer = timer
        self._memory = memory
        self._clock_ns = clock_ns
        self._snapshots = snapshots
        self._profiles = profiles
        self._inspection = inspection
        self._began_ns = clock_ns()
        self._paused_ns = 0
        self._paused = False
        self._unsettled_until = WARM_UP_STEPS
        self._unsettled_flag = StepFlag.WARM_UP
        self._is_quiet = False
        self.live = LiveSettings(workload, device, journal, marks, clock_ns)
        self._limits(1)
        self.ending: Ending | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the run waits for a resume."""
        return self._paused

    def proceed(self, step: int) -> bool:
        """Carry out what was asked for; whether to take the step numbered `step`."""
        inbox = self._inbox
        self._step_finished(step - 1)
        if self._is_quiet and not inbox.commands and inbox.stop_message is None and step < self._next_due:
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
            if self._snapshots is not None:
                self._snapshots.finish(step)
            if self._profiles is not None:
                self._profiles.before_step(step, is_settled=False)
            if self._inspection is not None:
                self._inspection.abort()
            return False
        if not self.live.cap_is_due:
            self.live.cap_when_warm(step)
        is_settled = step > self._unsettled_until
        self._marks.flags = 0 if is_settled else int(self._unsettled_flag)
        is_looking = self._snapshots is not None and self._look(self._snapshots, step, is_settled)
        is_profiling = self._profiles is not None and self._profile(self._profiles, step, is_settled)
        is_busy = is_looking or is_profiling
        if self._inspection is not None:
            is_profiled = bool(self._marks.flags & StepFlag.PROFILED)
            if self._inspection.before_step(step, self._unsettled_until, is_profiled):
                self._timer.restart()
        is_settled = step > self._unsettled_until
        self._is_quiet = is_settled and self.live.cap_is_due and self._budget_ns is None and not is_busy
        return True

    def _look(self, snapshots: Snapshots, step: int, is_settled: bool) -> bool:
        """Do what snapshots need before `step`; whether they want to be asked before the next one too."""
        was_busy = snapshots.is_busy
        if snapshots.before_step(step, is_settled):
            self._marks.flags |= int(StepFlag.PROFILED)
        if was_busy:
            self._timer.restart()
        return snapshots.is_busy

    def _profile(self, profiles: Profiles, step: int, is_settled: bool) -> bool:
        """Do what a profile needs before `step`; whether it wants to be asked before the next one too."""
        if step >= self._profile_due and (self._snapshots is None or not self._snapshots.is_busy):
            profiles.begin_due(step)
            self._limits(step)
        was_busy = profiles.is_busy
        if not was_busy:
            return False
        if profiles.before_step(step, is_settled):
            self._marks.flags |= int(StepFlag.PROFILED)
        elif not profiles.is_busy:  # It has ended: the next step finds cold caches and takes twice as long.
            self._unsettle(step)
            self._marks.flags |= int(self._unsettled_flag)
        self._timer.restart()
        return profiles.is_busy

    def settings_changed(self, step: int) -> None:
        """Take notice of settings that took effect before `step`."""
        self._limits(step)
        self._unsettle(step)
        self._timer.restart()

    def _limits(self, step: int) -> None:
        """When something is due by itself, as the settings in effect before `step` say."""
        settings = self._workload.settings
        self._last_step = sys.maxsize if settings.max_steps is None else settings.max_steps
        self._budget_ns = None if settings.max_seconds is None else int(settings.max_seconds * 1e9)
        self._profile_due = sys.maxsize if self._profiles is None else self._profiles.next_due(step)
        self._next_due = min(self._last_step + 1, self._profile_due)

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
            case CommandKind.SNAPSHOT if self._snapshots is not None:
                if self._profiles is not None and self._profiles.is_busy:
                    busy = "A profile is being taken, which a snapshot would distort; ask again after it."
                    self._answer(command, CommandState.REJECTED, step, busy)
                else:
                    self._snapshots.ask(command, step)
            case CommandKind.PROFILE if self._profiles is not None:
                if self._snapshots is not None and self._snapshots.is_busy:
                    busy = "A snapshot is being taken, which would distort a profile; ask again after it."
                    self._answer(command, CommandState.REJECTED, step, busy)
                else:
                    self._profiles.ask(command, step)
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
        try:
            change = self.live.ask(command.payload, step, command.command_id)
        except StepscopeError as error:
            self._answer(command, CommandState.REJECTED, step, str(error))
            return
        except (RuntimeError, OSError, ValueError, MemoryError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._answer(command, CommandState.REJECTED, step, f"It could not be put into effect: {reason}")
            return
        if change is None:
            self._answer(command, CommandState.APPLIED, step, "It was so already; nothing changed.")
            return
        self.settings_changed(step)
        self._answer(command, CommandState.APPLIED, step, change.message)

    def _empty_cache(self, command: CommandRow, step: int) -> None:
        if not self._device.facts.can_trim:
            reason = f"{self._device.facts.name} has no cache that could be emptied here."
            self._answer(command, CommandState.REJECTED, step, reason)
            return
        emptied = empty_cache(self._device, self._clock_ns)
        self._unsettle(step)
        detail = json.dumps(emptied._asdict())
        self._journal.put(
            EventRow(
                self._clock_ns(),
                step,
                EventKind.EMPTY_CACHE,
                Severity.INFO,
                "empty_cache()",
                emptied.message,
                detail,
                command.command_id,
            )
        )
        self._answer(command, CommandState.APPLIED, step, emptied.message)

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
        if self._profiles is not None:
            self._profiles.interrupt()
        self._timer.restart()

    def _unsettle(self, step: int) -> None:
        """Flag the steps from `step` on as transition, and read the memory of each and of the first after."""
        self._memory.restart(TRANSITION_STEPS + 1)
        if step > self._unsettled_until:
            self._unsettled_flag = StepFlag.TRANSITION
        self._unsettled_until = max(self._unsettled_until, step + TRANSITION_STEPS - 1)

    def _answer(self, command: CommandRow, state: CommandState, step: int, message: str) -> None:
        self._journal.put(AckRow(command.command_id, state, step, self._clock_ns(), message))


def expire(inbox: Inbox, journal: Journal, step: int, t_ns: int) -> None:
    """Answer what is still in the inbox when the run has ended."""
    while inbox.commands:
        command = inbox.commands.popleft()
        message = "The run ended before this could be applied."
        journal.put(AckRow(command.command_id, CommandState.EXPIRED, step, t_ns, message))


def _all_steps(taken: int, asked: int) -> str:
    if taken == asked:
        return f"Took all {asked:,} steps."
    return f"Took {taken:,} steps; it was asked to end at {asked:,}."
