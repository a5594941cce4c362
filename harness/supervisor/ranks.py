"""The ranks of a run, from their logs, their locks and the exit codes that their parent recorded."""

import json

from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import WINDOW
from harness.analysis.state import parse_state
from harness.errors import LogError
from harness.files.regular import read_whole
from harness.records.run import StepRow
from harness.store.folder import RunFolder
from harness.store.liveness import heartbeat_age_s, is_alive
from harness.store.reader import LogReader

_LIMIT_S = 5.0
_MOST_BYTES = 1 << 20
# More than are compared: some are left out, and logs are written at different moments.
_STEPS = 2 * WINDOW


def read_ranks(folder: RunFolder, size: int, now_unix_s: float) -> list[RankFacts]:
    """Return the facts of the ranks of a run of `size` processes; empty for a run of one."""
    if size < 2:
        return []
    codes = _returncodes(folder)
    return [_facts(RunFolder(folder.path, rank), codes.get(rank), now_unix_s) for rank in range(size)]


def read_rank_steps(folder: RunFolder, size: int) -> dict[int, list[StepRow]]:
    """Return the newest steps of each rank that can be read."""
    steps: dict[int, list[StepRow]] = {}
    for rank in range(size):
        try:
            with LogReader(folder.rank_log(rank), total_limit_s=_LIMIT_S) as reader:
                steps[rank] = reader.last_steps(_STEPS)
        except LogError:
            continue
    return steps


def _facts(folder: RunFolder, returncode: int | None, now_unix_s: float) -> RankFacts:
    facts = RankFacts(
        folder.rank,
        is_alive=is_alive(folder.alive),  # Before its log is read: it ends in the reverse order.
        heartbeat_age_s=heartbeat_age_s(folder.alive, now_unix_s),
        returncode=returncode,
    )
    try:
        with LogReader(folder.log, total_limit_s=_LIMIT_S) as reader:
            run, extent = reader.run(), reader.extent()
    except LogError:
        return facts
    return facts._replace(
        state=parse_state(run.state),
        message=run.state_message,
        last_step=extent.last,
        ended_unix_ns=run.ended_unix_ns,
    )


def _returncodes(folder: RunFolder) -> dict[int, int]:
    """Return the exit codes of failed ranks, as far as they are recorded and can be read."""
    try:
        ends = json.loads(read_whole(folder.rank_ends, _MOST_BYTES))
        return {int(end["rank"]): int(end["returncode"]) for end in ends}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
