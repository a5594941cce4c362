"""A change of settings is in effect on all ranks or on none."""

import time
from collections.abc import Callable

from harness.ranks.store import RankStore

_POLL_S = 0.002
# A loader may start workers, or a memory cap be set, before a rank can say that its change is in effect.
WAIT_S = 10.0


class RankConsent:
    """One rank's part of it: an `OtherProcesses` of its live settings."""

    def __init__(
        self,
        store: RankStore,
        wait_s: float = WAIT_S,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._wait_s = wait_s
        self._clock_s = clock_s
        self._sleep = sleep

    def settle(self, command_id: str, problem: str | None) -> str | None:
        """Report that a change is in effect here, or why it is not; return the sentence for a change that is
        to be reverted."""
        try:
            problems = self._problems(command_id, problem)
        except RuntimeError:  # The store has ended, with the run.
            return "The other ranks cannot be reached, so nothing has changed."
        if not problems:
            return None
        rank, text = min(problems.items())  # It may be this one, if it answers after the others settled it.
        return f"Rank {rank} did not take it, so no rank has changed: {text}"

    def _problems(self, command_id: str, problem: str | None) -> dict[int, str]:
        store, deadline_s = self._store, self._clock_s() + self._wait_s
        store.report(command_id, problem)
        while (problems := store.problems(command_id)) is None:
            if self._clock_s() > deadline_s:
                return store.settle_without(command_id)
            self._sleep(_POLL_S)
        return problems
