"""Ranks in threads, which take steps together and agree on commands in a store in memory."""

import json
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any, cast

from torch._C._distributed_c10d import HashStore

from harness.ranks.agreement import PROPOSAL, Agreement, Pace
from harness.ranks.store import RankStore
from harness.records.ranks import RankPlace
from harness.records.run import CommandKind, CommandRow
from harness.watch.boundary import Boundary
from harness.watch.context import Marks, Progress, RunContext
from harness.watch.inbox import Inbox


class _Context:
    """The part of a run's context that an agreement uses."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.marks = Marks()
        self.answers: list[tuple[str, str]] = []

    def answer(self, command_id: str, state: str, _step: int, _message: str) -> None:
        self.answers.append((command_id, state))


class RankThread:
    """One rank: a training thread that takes steps, and a thread that polls for proposals.

    Attributes:
        applied: the ids of the commands that it carried out, with the step before which it did.
        repeated: the ids of those that were proposed again, because a rank had answered too late.
        context: its context.
    """

    def __init__(self, store: HashStore, place: RankPlace, pace: Pace, seed: int) -> None:
        self.store = RankStore(store, place)
        self.context = _Context()
        self.applied: list[tuple[str, int]] = []
        self.repeated: set[str] = set()
        self._inbox = Inbox()
        self._random = Random(seed)
        self._agreement = Agreement(self.store, cast(RunContext, self.context), self._inbox, pace)
        self._boundary = Boundary(self.context.marks, cast(Any, None), cast(Any, None))
        self._taken = 0

    def poll(self, over: threading.Event, longest_s: float) -> None:
        """Pass on proposals, now and then late."""
        while not over.is_set():
            time.sleep(self._random.uniform(0, longest_s))
            if self._agreement.is_busy or self._inbox.commands:
                continue
            proposal = self.store.proposal(self._taken + 1)
            if proposal is not None:
                self._taken += 1
                if proposal.attempt:
                    self.repeated.add(proposal.command.command_id)
                payload = json.dumps([proposal.number, proposal.attempt, *proposal.command])
                self._inbox.put(CommandRow(proposal.command.command_id, 0, PROPOSAL, payload, "test"))

    def train(self, meeting: threading.Barrier, steps: int, longest_s: float) -> None:
        """Take so many steps; in each, all ranks wait for each other, as in the average of gradients."""
        for step in range(1, steps + 1):
            self._boundary.step = step
            self._act()
            began_ns = time.perf_counter_ns()
            time.sleep(self._random.uniform(0, longest_s))
            meeting.wait()
            self.context.progress.last_step = step
            self.context.progress.times_ns = (began_ns, time.perf_counter_ns())

    def _act(self) -> None:
        while self._inbox.commands:
            command = self._inbox.commands.popleft()
            if command.kind == PROPOSAL:
                self._agreement.request(command, self._boundary)
            else:
                self.applied.append((command.command_id, self._boundary.step))
        self._agreement.before_step(self._boundary)


def ranks_that_train(
    size: int, commands: int, steps: int, pace: Pace, longest_step_s: float, longest_poll_s: float, seed: int
) -> Sequence[RankThread]:
    """Return so many ranks after their steps, between which rank 0 has proposed commands at random."""
    random, store = Random(seed), HashStore()
    ranks = [RankThread(store, RankPlace(rank, rank, size, size), pace, seed + rank) for rank in range(size)]
    over, meeting = threading.Event(), threading.Barrier(size, timeout=60)
    pollers = [threading.Thread(target=rank.poll, args=(over, longest_poll_s)) for rank in ranks]
    trainers = [threading.Thread(target=rank.train, args=(meeting, steps, longest_step_s)) for rank in ranks]
    for thread in (*pollers, *trainers):
        thread.start()
    for number in range(commands):
        time.sleep(random.uniform(0, 2 * longest_step_s))
        ranks[0].store.propose(CommandRow(f"c{number}", 0, CommandKind.SET, "{}", "test"))
    for thread in trainers:
        thread.join()
    over.set()
    for thread in pollers:
        thread.join()
    return ranks
