"""The overhead of Stepscope in a run, from its log."""

from dashboard.data.runs import Look
from harness.errors import LogError
from harness.store.reader import LogReader
from harness.supervisor.own_cost import cost_words, read_own_cost


def own_cost(seen: Look) -> str:
    """Return one or two sentences; empty for a simulated run, which has no overhead, and if the log cannot be
    read."""
    if seen.run is None or seen.run.simulated:
        return ""
    try:
        with LogReader(seen.folder.log) as reader:
            return cost_words(read_own_cost(reader, seen.device))
    except LogError:
        return ""
