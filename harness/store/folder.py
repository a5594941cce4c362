"""One run's folder: where its files lie, what was asked for, and the end of its output."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

REQUEST = "request.json"
_TAIL_BYTES_A_LINE = 400


class Request(NamedTuple):
    """What was asked for when the run was created; `settings_json` is the settings as a JSON object."""

    run_id: str
    name: str
    created_unix_ns: int
    settings_json: str
    request_id: str | None = None
    """A token of the asker's: two requests that carry the same one are one request."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, complete in itself: copy it to share the run, delete it to forget it."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id, which is the folder's name."""
        return self.path.name

    @property
    def log(self) -> Path:
        """The log, written by the training process alone."""
        return self.path / "log.sqlite3"

    @property
    def control(self) -> Path:
        """Commands to the run, and its exits as its parent saw them."""
        return self.path / "control.sqlite3"

    @property
    def output(self) -> Path:
        """What the training process printed, both streams."""
        return self.path / "harness.log"

    @property
    def alive(self) -> Path:
        """The file the training process holds locked while it lives; its mtime is the heartbeat."""
        return self.path / "alive"

    @property
    def captures(self) -> Path:
        """The folder of what was captured on the way: snapshots, and reports on memory running out. There is
        none as long as nothing was."""
        return self.path / "captures"

    @property
    def process(self) -> Path:
        """The training process's identity."""
        return self.path / "process.json"

    def request(self) -> Request:
        """What was asked for. A folder whose request is missing or unreadable is named after itself, so that
        one damaged run never hides the others."""
        try:
            text = (self.path / REQUEST).read_text(encoding="utf-8")
            read = json.loads(text)
            return Request(
                run_id=self.run_id,
                name=str(read["name"]),
                created_unix_ns=int(read["created_unix_ns"]),
                settings_json=json.dumps(read["settings"]),
                request_id=read.get("request_id"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Request(self.run_id, self.run_id, self._modified_unix_ns(), "{}")

    def _modified_unix_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def output_tail(self, lines: int = 20) -> list[str]:
        """The last `lines` lines of the output, without line ends; empty when there is none."""
        try:
            with self.output.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - lines * _TAIL_BYTES_A_LINE))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:] if lines > 0 else []


def write_request(
    folder: Path, name: str, created_unix_ns: int, settings_json: str, request_id: str | None = None
) -> None:
    """Write the request of a run that is being created in `folder`."""
    request = {
        "run_id": folder.name,
        "name": name,
        "created_unix_ns": created_unix_ns,
        "settings": json.loads(settings_json),
        "request_id": request_id,
    }
    (folder / REQUEST).write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
