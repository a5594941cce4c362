"""Rows of the queue of runs."""

from enum import StrEnum
from typing import NamedTuple


class QueueState(StrEnum):
    """The state of an entry that has not started."""

    WAITING = "waiting"
    # On request.
    PAUSED = "paused"
    # It cannot start as it is: its model is gone, or it is predicted to fit on no device.
    BLOCKED = "blocked"


class QueueRequest(NamedTuple):
    """A run to start as soon as a device is free."""

    # The requester's token: requests with the same token are one request, and start one run.
    request_id: str
    added_unix_ns: int
    # None: the name of the model or script, and a number.
    name: str | None
    # The settings as JSON; of a script "{}".
    settings: str
    # The command of a script as JSON (`ScriptOrigin`); None for a model.
    script: str | None
    # "auto", "cpu", or the torch name or UUID of a GPU.
    device: str
    # 1: starts on a device although it is predicted not to fit.
    is_forced: int


class QueueRow(NamedTuple):
    """An entry of the queue."""

    entry_id: int
    # From 1; the order of the starts, whatever the clock says.
    position: int
    request_id: str
    added_unix_ns: int
    name: str | None
    settings: str
    script: str | None
    device: str
    is_forced: int
    state: str
    # Why it has not started, in one sentence.
    reason: str
    # The device that it is about to start on, written before the start.
    starting_on: str | None


class PlacementRow(NamedTuple):
    """A run that the queue started, and its device."""

    run_id: str
    device: str
