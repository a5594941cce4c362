"""The step controller: commands and due actions between two steps, and the end of the run."""

from collections.abc import Callable, Sequence

from harness.records.run import CommandKind, CommandRow, CommandState, RunState
from harness.watch.boundary import NEVER, TIMED, Boundary, Outcome, StepAction
from harness.watch.context import RunContext
from harness.watch.inbox import Inbox

ABORTED = "The run ended before this was done."


class StepController:
    """Runs between two steps. If nothing is requested or due, `proceed` takes well under a microsecond.

    It handles pause, resume and stop itself; the actions, in their order, do the rest.

    Attributes:
        step_finished: called with the number of every step, observed or not.
    """

    def __init__(
        self,
        context: RunContext,
        inbox: Inbox,
        boundary: Boundary,
        actions: Sequence[StepAction],
        step_finished: Callable[[int], None] = lambda _step: None,
    ) -> None:
        self._context = context
        self._inbox = inbox
        self._boundary = boundary
        self._actions = actions
        self.step_finished = step_finished
        self._by_kind: dict[str, StepAction] = {
            kind: action for action in actions for kind in action.commands
        }
        self._due = 0
        self._deadline_ns = 0

    @property
    def is_paused(self) -> bool:
        """Return whether the run waits for a resume."""
        return self._boundary.is_paused

    @property
    def outcome(self) -> Outcome | None:
        """The reason for the end of the run; None while it goes on."""
        return self._boundary.outcome

    def proceed(self, step: int) -> bool:
        """Carry out requests; return whether to take the step numbered `step`."""
        inbox, boundary = self._inbox, self._boundary
        self.step_finished(step - 1)
        if step < boundary.due and not inbox.commands and inbox.stop_message is None:
            return True
        is_early = boundary.due == TIMED and step < self._due and not inbox.commands
        if is_early and inbox.stop_message is None and self._context.clock_ns() < self._deadline_ns:
            return True
        boundary.step = step
        if inbox.commands:
            self._empty_inbox()
        if boundary.is_paused:
            self._wait()
        if inbox.stop_message is not None:
            boundary.end(RunState.STOPPED, inbox.stop_message)
        else:
            self._act()
        if boundary.outcome is None:
            return True
        for action in self._actions:
            action.finish(boundary)
        return False

    def quiet_until(self) -> tuple[int, int]:
        """Return the number of the first step after which something may be due, and the moment from which on
        it may be, on the clock of the steps' times. Until then `proceed` does nothing if nothing is
        requested."""
        if self._boundary.due != TIMED:
            return self._boundary.due - 1, NEVER
        return self._due - 1, self._deadline_ns + self._context.progress.zero_ns

    def close(self) -> None:
        """Abort all actions. Idempotent."""
        for action in reversed(self._actions):
            action.abort(self._context.last_step, ABORTED)

    def _act(self) -> None:
        """Run all due actions, and note the next due step and time."""
        boundary, actions = self._boundary, self._actions
        boundary.begin_flags()
        boundary.is_capturing = False
        for action in actions:
            action.before_step(boundary)
            if boundary.outcome is not None:
                return
            boundary.is_capturing |= action.is_capturing
        if not boundary.is_settled or any(action.is_busy for action in actions):
            boundary.due = 0
            return
        self._due = min((action.due for action in actions), default=NEVER)
        deadlines_ns = (action.deadline_ns for action in actions)
        self._deadline_ns = min((at_ns for at_ns in deadlines_ns if at_ns is not None), default=NEVER)
        boundary.due = self._due if self._deadline_ns == NEVER else TIMED

    def _empty_inbox(self) -> None:
        """Carry out every command up to a stop; later ones expire."""
        inbox = self._inbox
        while inbox.commands and inbox.stop_message is None:
            self._carry_out(inbox.commands.popleft())
        self._boundary.restart()

    def _carry_out(self, command: CommandRow) -> None:
        match command.kind:
            case CommandKind.PAUSE:
                self._pause(command)
            case CommandKind.RESUME:
                self._resume(command)
            case CommandKind.STOP:
                self._answer(command, CommandState.APPLIED, "Stopping.")
                self._inbox.stop(f"Stopped by request from {command.source}.")
            case kind:
                self._pass_on(command, self._by_kind.get(kind))

    def _pass_on(self, command: CommandRow, action: StepAction | None) -> None:
        """Pass the command to its action, unless there is none or another capture is in progress."""
        if action is None:
            reason = f"This Stepscope knows no command {command.kind!r}."
            self._answer(command, CommandState.REJECTED, reason)
        elif (busy := self._other_capture(action)) is not None:
            reason = (
                f"A {busy} is in progress, which a {action.capture} would distort; send it again after that."
            )
            self._answer(command, CommandState.REJECTED, reason)
        else:
            for other in self._actions:
                if other is not action:
                    other.before_request(command, self._boundary)
            action.request(command, self._boundary)

    def _other_capture(self, action: StepAction) -> str | None:
        """Return the noun of another capture in progress, if `action` takes captures."""
        if not action.capture:
            return None
        return next(
            (other.capture for other in self._actions if other.is_capturing and other is not action), None
        )

    def _pause(self, command: CommandRow) -> None:
        if not self._boundary.is_paused:
            self._boundary.is_paused = True
            message = f"Paused before step {self._boundary.step:,}."
            self._context.journal.set_state(RunState.PAUSED, message, timeout_s=0)
        self._answer(command, CommandState.APPLIED, "Paused.")

    def _resume(self, command: CommandRow) -> None:
        if self._boundary.is_paused:
            self._boundary.is_paused = False
            self._boundary.unsettle(self._boundary.step)
            self._context.journal.set_state(RunState.RUNNING, "Resumed.", timeout_s=0)
        self._answer(command, CommandState.APPLIED, "Resumed.")

    def _wait(self) -> None:
        """Answer commands until resumed or stopped."""
        boundary, clock_ns = self._boundary, self._context.clock_ns
        began_ns = clock_ns()
        while boundary.is_paused and self._inbox.stop_message is None:
            self._inbox.wait(1.0)
            self._empty_inbox()
        boundary.paused_ns += clock_ns() - began_ns
        boundary.pauses += 1
        boundary.restart()

    def _answer(self, command: CommandRow, state: CommandState, message: str) -> None:
        self._context.answer(command.command_id, state, self._boundary.step, message)


def expire(inbox: Inbox, context: RunContext) -> None:
    """Answer the commands left in the inbox at the end of the run."""
    while inbox.commands:
        command = inbox.commands.popleft()
        message = "The run ended before this could be applied."
        context.answer(command.command_id, CommandState.EXPIRED, context.last_step, message)
