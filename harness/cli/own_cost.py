"""The overhead of Stepscope in a run, as a text line and as JSON."""

from typing import Any

from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import RunSummary
from harness.supervisor.own_cost import SeenCost, cost_words, read_own_cost


def overhead_of(folder: RunFolder, run: RunSummary) -> SeenCost | None:
    """Read the overhead; None for a simulated run, which has none, and if the log cannot be read."""
    if run.is_simulated:
        return None
    try:
        with LogReader(folder.log) as reader:
            return read_own_cost(reader, run.device)
    except LogError:
        return None


def overhead_facts(overhead: SeenCost | None) -> list[tuple[str, str]]:
    """Return one line, or none."""
    return [] if overhead is None else [("overhead", cost_words(overhead))]


def overhead_json(overhead: SeenCost | None) -> dict[str, Any] | None:
    """Return the overhead for JSON, in base units."""
    if overhead is None:
        return None
    return overhead._asdict() | {"row": None if overhead.row is None else overhead.row._asdict()}
