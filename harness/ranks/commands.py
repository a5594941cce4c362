"""The commands of a run of several processes, on each of its ranks."""

import json
import time
import uuid
from collections import deque
from collections.abc import Callable

from harness.ranks.agreement import PROPOSAL, Agreement, end_command
from harness.ranks.store import RankStore
from harness.records.run import CommandKind, CommandRow, RunState
from harness.store.folder import RunFolder
from harness.watch.context import RunContext
from harness.watch.inbox import Inbox
from harness.watch.jobs.commands import CommandPoll

# The kinds of commands that every rank carries out before the same step. Others record something: the rank
# that has read one does it alone.
_TOGETHER = frozenset({CommandKind.SET, CommandKind.PAUSE, CommandKind.RESUME, CommandKind.STOP})
# After a signal the process ends by itself if the ranks have not agreed by then.
_PATIENCE_S = 5.0


class RankInbox(Inbox):
    """The inbox of a rank, where a signal asks all ranks to stop. A rank that stopped alone would leave the
    others waiting in a collective."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self.stop_message: str | None = None
        self._requested_s = 0.0

    def stop_together(self, message: str) -> None:
        """Ask all ranks to stop. Called from signal handlers."""
        if self.stop_message is None:
            self._requested_s = self._clock_s()
            self.stop_message = message

    @property
    def has_waited(self) -> bool:
        """Return whether the agreed end should have come by now."""
        return self.stop_message is not None and self._clock_s() - self._requested_s > _PATIENCE_S


class RankCommands:
    """The source of commands of one rank, a job of the sampler: the first rank of each machine proposes those
    of the folder there, and each rank passes proposals to its training thread, one at a time."""

    def __init__(
        self,
        folder: RunFolder,
        inbox: RankInbox,
        store: RankStore,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._store = store
        self._unix_ns = unix_ns
        self._read = Inbox()
        self._control = CommandPoll(folder, self._read) if store.place.local_rank == 0 else None
        self._agreement: Agreement | None = None
        self._proposal_count = 0
        self._has_proposed_stop = False
        self._unsent: deque[CommandRow] = deque()

    def agreement(self, context: RunContext) -> Agreement:
        """Return the action of this rank's training thread."""
        self._agreement = Agreement(self._store, context, self._inbox)
        return self._agreement

    def end_in_time(self, message: str) -> None:
        """End the run on all ranks at the time limit, by the clock of rank 0 alone. Called on the training
        thread."""
        if self._store.place.rank == 0:
            self._unsent.append(self._end(RunState.FINISHED, message))

    def poll(self) -> None:
        """Propose new commands, and pass on the next proposal. Raises RuntimeError when the store has
        ended."""
        if self._inbox.has_waited and self._inbox.stop_message is not None:
            self._inbox.stop(self._inbox.stop_message)
        if self._control is not None:
            self._control.poll()
        self._gather()
        if self._agreement is None:
            return
        while self._unsent:
            self._store.propose(self._unsent[0])
            self._unsent.popleft()
        if self._agreement.is_busy or any(one.kind == PROPOSAL for one in list(self._inbox.commands)):
            return
        proposal = self._store.proposal(self._proposal_count + 1)
        if proposal is not None:
            self._proposal_count += 1
            payload = json.dumps([proposal.number, proposal.attempt, *proposal.command])
            self._inbox.put(
                CommandRow(proposal.command.command_id, self._unix_ns(), PROPOSAL, payload, "stepscope")
            )

    def close(self) -> None:
        """Close the control file. Idempotent."""
        if self._control is not None:
            self._control.close()

    def _gather(self) -> None:
        while self._read.commands:
            command = self._read.commands.popleft()
            if command.kind in _TOGETHER:
                self._unsent.append(command)
            else:
                self._inbox.put(command)
        if self._inbox.stop_message is not None and not self._has_proposed_stop:
            self._has_proposed_stop = True
            self._unsent.append(self._end(RunState.STOPPED, self._inbox.stop_message))

    def _end(self, state: RunState, message: str) -> CommandRow:
        return end_command(uuid.uuid4().hex, self._unix_ns(), state, message)
