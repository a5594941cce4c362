"""The ranks of a run, from their logs, their locks and the exit codes that their parent recorded."""

import json
from collections.abc import Sequence

from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import WINDOW
from harness.analysis.state import parse_state
from harness.errors import LogError
from harness.files.regular import read_whole
from harness.records.ranks import RankPart
from harness.records.run import StepRow
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import heartbeat_age_s, is_alive
from harness.store.reader import LogReader

_LIMIT_S = 5.0
_MOST_BYTES = 1 << 20
# More than are compared: some are left out, and logs are written at different moments.
_STEPS = 2 * WINDOW


def parts_of(folder: RunFolder) -> list[RunFolder]:
    """Return the runs of all machines that train together with that of `folder`, as far as they are in its
    home, by their first ranks; `folder` alone for a run on one machine."""
    group_id = folder.request().part.group_id
    if group_id is None:
        return [folder]
    runs = Home(folder.path.parents[1]).runs()
    others = [run for run in runs if run != folder and run.request().part.group_id == group_id]
    # Where the same part was imported more than once the last one counts; `folder` itself in any case.
    parts = {run.request().part.first_rank: run for run in (*reversed(others), folder)}
    return [run for _, run in sorted(parts.items())]


def read_ranks(parts: Sequence[RunFolder], now_unix_s: float) -> list[RankFacts]:
    """Return the facts of the ranks of these parts of a run; empty for a run of one process."""
    facts = []
    for folder, part in _with_ranks(parts):
        codes = _returncodes(folder)
        for at in range(part.ranks):
            of_rank = RunFolder(folder.path, at)
            facts.append(_facts(of_rank, part.first_rank + at, codes.get(at), now_unix_s))
    return facts


def read_rank_steps(parts: Sequence[RunFolder]) -> dict[int, list[StepRow]]:
    """Return the newest steps of each rank of these parts of a run that can be read; empty for a run of one
    process."""
    steps: dict[int, list[StepRow]] = {}
    for folder, part in _with_ranks(parts):
        for at in range(part.ranks):
            try:
                with LogReader(folder.rank_log(at), total_limit_s=_LIMIT_S) as reader:
                    steps[part.first_rank + at] = reader.last_steps(_STEPS)
            except LogError:
                continue
    return steps


def _with_ranks(parts: Sequence[RunFolder]) -> list[tuple[RunFolder, RankPart]]:
    pairs = [(folder, folder.request().part) for folder in parts]
    return [(folder, part) for folder, part in pairs if not part.is_alone]


def _facts(folder: RunFolder, rank: int, returncode: int | None, now_unix_s: float) -> RankFacts:
    facts = RankFacts(
        rank,
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
        host=run.host,
    )


def _returncodes(folder: RunFolder) -> dict[int, int]:
    """Return the exit codes of failed ranks, as far as they are recorded and can be read."""
    try:
        ends = json.loads(read_whole(folder.rank_ends, _MOST_BYTES))
        return {int(end["rank"]): int(end["returncode"]) for end in ends}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
