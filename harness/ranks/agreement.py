"""The step before which all ranks carry out a command.

A rank that takes a proposal at the boundary before step s promises not to begin step s + m without a
decision; m is some tenths of a second in steps. The decision is the largest promised step, once all have
answered. A rank that reaches its promised step first waits there. Ranks that train together are within a step
of each other, so the wait is short; after a second the rank decides that nobody carries it out, and rank 0
proposes it again with a larger m.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.ranks.store import Decision, Proposal, RankStore
from harness.records.measurement import NO_MEASUREMENT
from harness.records.run import CommandKind, CommandRow, CommandState, RunState
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.inbox import Inbox

# The kind of a command that carries a proposal to the training thread.
PROPOSAL = "proposal"
# The kind of a proposal that ends the run, from a signal or the time limit.
END = "end"

_LEAST_MARGIN = 2
# Between two looks at the store of a rank that waits.
_POLL_S = 0.002
# The same while its steps go on.
_LOOK_S = 0.02
MOST_ATTEMPTS = 4


class Pace(NamedTuple):
    """The time in which all ranks are expected to answer, and the time for which a rank waits for them."""

    margin_s: float = 0.5
    wait_s: float = 1.0


class Agreement(StepAction):
    """The proposals on the training thread of one rank: one at a time."""

    commands = frozenset({PROPOSAL, CommandKind.MEASURE})

    def __init__(
        self,
        store: RankStore,
        context: RunContext,
        inbox: Inbox,
        pace: Pace = Pace(),  # noqa: B008  (immutable)
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._context = context
        self._inbox = inbox
        self._pace = pace
        self._clock_s = clock_s
        self._sleep = sleep
        self._proposal: Proposal | None = None
        self._decision: Decision | None = None
        self._horizon = 0
        self._look_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether a proposal is under way."""
        return self._proposal is not None

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Take a proposal; reject what ranks cannot do together."""
        if command.kind == CommandKind.MEASURE:
            answer = self._context.answer
            answer(command.command_id, CommandState.REJECTED, boundary.step, NO_MEASUREMENT)
            return
        number, attempt, *proposed = json.loads(command.payload)
        proposal = Proposal(number, attempt, CommandRow(*proposed))
        if boundary.is_paused:  # As all ranks are, before the same step.
            self._carry_out(proposal.command, boundary)
            return
        self._proposal, self._decision = proposal, None
        self._horizon = boundary.step + self._margin(attempt)
        self._store.answer(number, self._horizon)

    def before_step(self, boundary: Boundary) -> None:
        """Carry out the proposal if all ranks do so before this step; wait if this rank has promised to."""
        proposal = self._proposal
        if proposal is None:
            return
        if self._decision is None:
            self._decision = self._read_decision(proposal, is_due=boundary.step >= self._horizon)
        decision = self._decision
        if decision is None or (decision.step is not None and boundary.step < decision.step):
            return
        self._proposal = None
        if decision.step is not None:
            self._carry_out(proposal.command, boundary)
        elif self._store.place.rank == 0:
            self._propose_again(proposal, decision, boundary)

    def _margin(self, attempt: int) -> int:
        step_ns = self._context.progress.last_step_ns
        wanted_ns = self._pace.margin_s * 1e9 * 2**attempt
        return _LEAST_MARGIN if step_ns <= 0 else max(_LEAST_MARGIN, int(wanted_ns / step_ns))

    def _read_decision(self, proposal: Proposal, *, is_due: bool) -> Decision | None:
        now_s = self._clock_s()
        if not is_due:
            if now_s < self._look_s:
                return None
            self._look_s = now_s + _LOOK_S
            return self._store.decision(proposal.number)
        while (decision := self._store.decision(proposal.number)) is None:
            if self._clock_s() - now_s > self._pace.wait_s:
                return self._store.give_up(proposal.number)
            self._sleep(_POLL_S)
        return decision

    def _carry_out(self, command: CommandRow, boundary: Boundary) -> None:
        if command.kind == END:
            boundary.end(*_end_of(command))
        else:
            self._inbox.commands.appendleft(command)
            boundary.due = 0

    def _propose_again(self, proposal: Proposal, decision: Decision, boundary: Boundary) -> None:
        command = proposal.command
        if proposal.attempt + 1 < MOST_ATTEMPTS:
            self._store.propose(command, proposal.attempt + 1)
        elif command.kind == END:
            self._inbox.stop(_end_of(command)[1])
        else:
            ranks = ", ".join(map(str, decision.missing)) or "some"
            message = f"Rank {ranks} did not answer in time, so no rank has changed; send it again."
            self._context.answer(command.command_id, CommandState.REJECTED, boundary.step, message)


def end_command(command_id: str, unix_ns: int, state: RunState, message: str) -> CommandRow:
    """Return the command that ends the run on all ranks."""
    return CommandRow(command_id, unix_ns, END, json.dumps([state.value, message]), "stepscope")


def _end_of(command: CommandRow) -> tuple[RunState, str]:
    state, message = json.loads(command.payload)
    return RunState(state), message
