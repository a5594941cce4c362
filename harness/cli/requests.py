"""Requests to a run and their results, as text lines and as JSON."""

from typing import Any, NamedTuple

from harness import words
from harness.errors import LogError
from harness.records.run import AckRow, CommandKind, CommandRow, CommandState
from harness.settings.spec import SPECS, text_of_value
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader

_MOST_REQUESTS = 5
_LONGEST_VALUE = 80


class Request(NamedTuple):
    """A command to a run, with the newest acknowledgment; None before the first."""

    command: CommandRow
    ack: AckRow | None

    @property
    def title(self) -> str:
        """The request in words: "amp=bf16", "empty cache"."""
        if self.command.kind != CommandKind.SET:
            return self.command.kind.replace("_", " ")
        return ", ".join(f"{name}={_value(name, value)}" for name, value in self.command.values.items())

    @property
    def is_applied(self) -> bool:
        """Whether it took effect, also for a while: an event of the run says so."""
        return self.ack is not None and self.ack.state in (CommandState.APPLIED, CommandState.ROLLED_BACK)


def requests_of(folder: RunFolder) -> list[Request]:
    """Read the requests to a run, oldest first; empty where they cannot be read."""
    try:
        with ControlLog(folder) as control, LogReader(folder.log) as reader:
            acks = {ack.command_id: ack for ack in reader.acks()}
            return [Request(command, acks.get(command.command_id)) for command in control.newest_commands()]
    except LogError:
        return []


def request_facts(requests: list[Request], *, is_over: bool) -> list[tuple[str, str]]:
    """Return a line for each of the newest requests that did not take effect; `is_over`: the run has
    ended."""
    facts = []
    for request in [one for one in requests if not one.is_applied][-_MOST_REQUESTS:]:
        if request.ack is None or request.ack.state == CommandState.QUEUED:
            facts.append(("not applied" if is_over else "queued", request.title))
        else:
            facts.append((request.ack.state, f"{request.title}: {request.ack.message}"))
    return facts


def requests_json(requests: list[Request]) -> list[dict[str, Any]]:
    """Return the requests for JSON."""
    return [
        {
            "command_id": command.command_id,
            "kind": command.kind,
            "payload": command.values,
            "source": command.source,
            "state": CommandState.QUEUED if ack is None else ack.state,
            "step": None if ack is None else ack.step,
            "message": "" if ack is None else ack.message,
        }
        for command, ack in requests
    ]


def _value(name: str, value: Any) -> str:
    text = text_of_value(name, value)
    return text if name in SPECS else words.clip(text, _LONGEST_VALUE)
