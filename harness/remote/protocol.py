"""The messages between a node and the collector of a run, and the errors of their connection."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from harness.errors import StepscopeError
from harness.records.run import CommandRow
from harness.records.script import ScriptOrigin
from harness.store.replica import Marks, NewRows


class NodeRequest(NamedTuple):
    """The run that a node trains; its id, name, settings and script are those of the home."""

    run_id: str
    name: str
    created_unix_ns: int
    settings_json: str
    # The command of a script's run: a file that the node has too, under the same path.
    script: ScriptOrigin | None = None


class Pull(NamedTuple):
    """A request for news: the rows after `marks`, the output after `output_bytes`. `commands` are for the
    run, `commands_read` is the number of the last of them; a command that arrives twice is one."""

    marks: Marks
    output_bytes: int
    commands: Sequence[CommandRow]
    commands_read: int = 0


class News(NamedTuple):
    """The news of a run, in answer to one request, which may be an earlier one than the last."""

    host: str
    # The number of the last command that the request had.
    commands_read: int
    # None while there is no log.
    rows: NewRows | None
    output: bytes
    # The number of finished steps, also of those that are not in the log yet.
    finished_step: int
    # The exit code of the training process (negative: the signal); None while it runs.
    returncode: int | None


class GpuSize(NamedTuple):
    """Name and memory of a GPU of a node."""

    name: str
    memory_bytes: int


class NodeLostError(StepscopeError):
    """The node, or its part of the run, has died."""


class NodeSilentError(StepscopeError):
    """The node did not answer in time; it may yet."""


class RemoteNode(Protocol):
    """The connection to the node of one run."""

    def pull(self, request: Pull, timeout_s: float) -> News:
        """Return the news. Raises NodeSilentError and NodeLostError."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the training process. Raises NodeLostError."""
        ...

    def close(self) -> None:
        """Release the node, which ends what still trains there. Idempotent."""
        ...
