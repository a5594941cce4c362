"""The alerts that were reported already, in a file of the home, so that a restart repeats nothing."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from harness.files.plain_json import json_object
from harness.files.regular import read_whole, write_private

_MOST_BYTES = 4 << 20
# Ended runs that are remembered; older ones are too old to be new.
_MOST_ENDED = 2_000


class Tracked(NamedTuple):
    """A live run: the newest event that was read, and the causes that were reported."""

    event_id: int = 0
    causes: tuple[str, ...] = ()


class ReportedAlerts:
    """The state of one watch. `path` None: in memory only.

    Attributes:
        is_new: True if there was no file.
        polled_unix_s: the time of the newest poll; 0 without one.
        runs: live runs by id.
        ended: the ids of ended runs, the oldest first.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file; a damaged one counts as missing."""
        self._path = path
        values = _read(path)
        self.is_new = not values
        self.polled_unix_s = float(values.get("polled_unix_s", 0.0))
        self.runs = {
            str(run): Tracked(int(event_id), tuple(map(str, causes)))
            for run, (event_id, causes) in values.get("runs", {}).items()
        }
        self.ended = [str(run) for run in values.get("ended", [])]

    def end(self, run_id: str) -> None:
        """Move a run from the live to the ended ones."""
        self.runs.pop(run_id, None)
        self.ended = [*self.ended[-_MOST_ENDED + 1 :], run_id]

    def save(self) -> None:
        """Write the file; a reader gets the old or the new one. Raises OSError."""
        if self._path is None:
            return
        values = {
            "polled_unix_s": self.polled_unix_s,
            "runs": {run: [tracked.event_id, tracked.causes] for run, tracked in self.runs.items()},
            "ended": self.ended,
        }
        draft = self._path.with_suffix(".draft")
        write_private(draft, json.dumps(values) + "\n")
        draft.replace(self._path)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = json_object(read_whole(path, _MOST_BYTES).decode("utf-8"))
        float(values["polled_unix_s"])
        [(int(event_id), tuple(causes)) for event_id, causes in values["runs"].values()]
        list(values["ended"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return values
