"""Markers of events: labels above the panels of a chart of steps, and lines through them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.records.run import EventKind, EventRow, Severity

MARKED = frozenset(
    {
        EventKind.SETTING,
        EventKind.EMPTY_CACHE,
        EventKind.OOM,
        EventKind.OOM_RECOVERED,
        EventKind.ERROR,
        EventKind.LEAK,
        EventKind.LEAK_CLEARED,
        EventKind.SNAPSHOT,
        EventKind.PROFILE,
        EventKind.NON_FINITE_LOSS,
        EventKind.GAP,
        EventKind.STALL,
        EventKind.EVALUATION,
        EventKind.NOTE,
    }
)
QUIET = frozenset({EventKind.EVALUATION, EventKind.NOTE})
# More lines of a script's own notes and evaluations hide the data.
MOST_QUIET = 24
_BAD = frozenset({EventKind.OOM, EventKind.NON_FINITE_LOSS})


class Marker(NamedTuple):
    """A label above a dashed line; the browser arranges those that collide."""

    step: int
    label: str
    message: str
    tone: str


def marker_of(event: EventRow) -> Marker:
    """Build the marker of an event; errors, OOM and a non-finite loss have the tone "bad"."""
    bad = event.kind in _BAD or event.severity == Severity.ERROR
    tone = "bad" if bad else "quiet" if event.kind in QUIET else "plain"
    return Marker(event.step, event.label, event.message, tone)


def dashes(markers: Sequence[Marker]) -> list[dict[str, Any]]:
    """Build the lines under markers, without those of a script's notes and evaluations if there are many."""
    quiet = sum(marker.tone == "quiet" for marker in markers)
    return [dash(marker) for marker in markers if marker.tone != "quiet" or quiet <= MOST_QUIET]


def dash(marker: Marker) -> dict[str, Any]:
    """Build the line through all panels under a marker."""
    color, width, dash = ("@bad", 1.4, "dash") if marker.tone == "bad" else ("@marker", 1, "dot")
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": marker.step,
        "x1": marker.step,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": color, "width": width, "dash": dash},
    }
