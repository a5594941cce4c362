"""The state of a run of several processes, whose ranks end together: which of them made the others end."""

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.state import HEARTBEAT_LIMIT_S, RunStatus, signal_name
from harness.records.run import RunState

# The words of Gloo and NCCL in the error of a rank that has lost another one.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|remote process exited|ncclRemoteError|"
    r"ncclSystemError|timed out waiting|socket timeout|watchdog|DistNetworkError|DistStoreError|"
    r"DistBackendError",
    re.IGNORECASE,
)
_BAD = frozenset({RunState.FAILED, RunState.LOST, RunState.KILLED, RunState.OUT_OF_MEMORY, RunState.STOPPED})


class RankFacts(NamedTuple):
    """The evidence on one rank. `state` and `message` are those of its log; None: it has no log, or none that
    can be read."""

    rank: int
    state: RunState | None = None
    message: str = ""
    last_step: int | None = None
    ended_unix_ns: int | None = None
    # True while its process runs.
    is_alive: bool = False
    heartbeat_age_s: float | None = None
    # The exit code that its parent received, if it failed; negative: the signal.
    returncode: int | None = None
    # The name of its machine; "" without a log.
    host: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether its log says how it ended."""
        return self.state is not None and self.state.is_over

    @property
    def sentence(self) -> str:
        """Its state in one sentence."""
        where = "" if self.last_step is None else f" at step {words.count(self.last_step)}"
        if self.was_killed and self.returncode is not None:
            return f"Killed by {signal_name(-self.returncode)}{where}."
        if self.has_ended:
            return self.message if self.message.endswith((".", "!", "?")) else f"{self.message}."
        if self.is_alive:
            state = RunState.LAUNCHING if self.state is None else self.state
            return f"{state.value.replace('_', ' ').capitalize()}{where}."
        return f"The process vanished{where} without an exit status."

    @property
    def was_killed(self) -> bool:
        """Return whether a signal ended it, other than torchrun's own when it ends all ranks."""
        code = self.returncode
        return code is not None and code < 0 and code != -signal.SIGTERM and not self.has_ended


def state_of_ranks(status: RunStatus, ranks: Sequence[RankFacts]) -> RunStatus:
    """Return the state of the run: `status`, that of rank 0, unless another rank explains it."""
    if len(ranks) < 2:
        return status
    if not status.state.is_over:
        return _of_live(status, ranks)
    if status.state not in _BAD:
        return status
    first = _cause(ranks)
    if first is None:
        return status
    state = first.state if first.has_ended and first.state is not None else RunState.KILLED
    others = "The other ranks ended with it."
    return RunStatus(state, f"Rank {first.rank}: {first.sentence} {others} {_log_ends(ranks)}".rstrip())


def _of_live(status: RunStatus, ranks: Sequence[RankFacts]) -> RunStatus:
    silent = [rank for rank in ranks if rank.is_alive and (rank.heartbeat_age_s or 0.0) > HEARTBEAT_LIMIT_S]
    if silent:
        first = max(silent, key=lambda rank: rank.heartbeat_age_s or 0.0)
        age = words.ago(first.heartbeat_age_s or 0.0)
        message = (
            f"Rank {first.rank} is not responding: its last heartbeat was {age}; the others wait for it."
        )
        return RunStatus(RunState.STALLED, message)
    # One that has finished has only been faster to end.
    others = [rank for rank in ranks[1:] if rank.state not in (None, RunState.FINISHED)]
    ended = [rank for rank in others if not rank.is_alive]
    if ended and any(rank.is_alive for rank in ranks) and status.state is not RunState.STOPPING:
        message = f"Rank {ended[0].rank} has ended; torchrun ends the others. {ended[0].sentence}"
        return RunStatus(RunState.STOPPING, message, is_warning=True)
    return status


def _cause(ranks: Sequence[RankFacts]) -> RankFacts | None:
    """Return the rank that made the others end; None if none stands out."""
    out_of_memory = [rank for rank in ranks if rank.state is RunState.OUT_OF_MEMORY]
    killed = [rank for rank in ranks if rank.was_killed]
    vanished = [
        rank for rank in ranks if not rank.has_ended and not rank.is_alive and rank.returncode is None
    ]
    failed = [rank for rank in ranks if rank.state is RunState.FAILED and not _LOST_PEER.search(rank.message)]
    for group in (out_of_memory, killed, failed):
        if group:
            return min(group, key=lambda rank: (rank.ended_unix_ns or 0, rank.rank))
    # Of those that torchrun ended nothing is recorded either.
    has_lost_peer = any(rank.state is RunState.FAILED for rank in ranks)
    return vanished[0] if vanished and has_lost_peer else None


def _log_ends(ranks: Sequence[RankFacts]) -> str:
    steps = [rank.last_step for rank in ranks if rank.last_step is not None]
    if not steps:
        return ""
    return f"Their logs end at {words.step_range(min(steps), max(steps))}."
