"""The overhead of Stepscope in a run, from its log."""

from dashboard.data.runs import RunView
from harness.errors import LogError
from harness.store.reader import LogReader
from harness.supervisor.overhead import overhead_text, read_overhead


def overhead_sentence(view: RunView) -> str:
    """Return one or two sentences; empty for a simulated run, which has no overhead, and if the log cannot be
    read."""
    if view.run is None or view.run.simulated:
        return ""
    try:
        with LogReader(view.folder.log) as reader:
            return overhead_text(read_overhead(reader, view.device))
    except LogError:
        return ""
