"""The overhead of Stepscope in a run, as a text line and as JSON."""

from typing import Any

from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import RunSummary
from harness.supervisor.overhead import RunOverhead, overhead_text, read_overhead


def overhead_of(folder: RunFolder, run: RunSummary) -> RunOverhead | None:
    """Read the overhead; None for a simulated run, which has none, and if the log cannot be read."""
    if run.is_simulated:
        return None
    try:
        with LogReader(folder.log) as reader:
            return read_overhead(reader, run.device)
    except LogError:
        return None


def overhead_facts(overhead: RunOverhead | None) -> list[tuple[str, str]]:
    """Return one line, or none."""
    return [] if overhead is None else [("overhead", overhead_text(overhead))]


def overhead_json(overhead: RunOverhead | None) -> dict[str, Any] | None:
    """Return the overhead for JSON, in base units."""
    if overhead is None:
        return None
    return overhead._asdict() | {"row": None if overhead.row is None else overhead.row._asdict()}
