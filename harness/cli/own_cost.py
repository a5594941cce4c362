"""What Stepscope costs a run, as a line for people and as base units for programs."""

from typing import Any

from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import RunSummary
from harness.supervisor.own_cost import SeenCost, cost_words, read_own_cost


def cost_of(folder: RunFolder, run: RunSummary) -> SeenCost | None:
    """None for a simulated run, which costs nothing, and where the log cannot be read."""
    if run.is_simulated:
        return None
    try:
        with LogReader(folder.log) as reader:
            return read_own_cost(reader, run.device)
    except LogError:
        return None


def cost_facts(seen: SeenCost | None) -> list[tuple[str, str]]:
    """One line."""
    return [] if seen is None else [("own cost", cost_words(seen))]


def cost_json(seen: SeenCost | None) -> dict[str, Any] | None:
    """In base units."""
    if seen is None:
        return None
    return seen._asdict() | {"row": None if seen.row is None else seen.row._asdict()}
