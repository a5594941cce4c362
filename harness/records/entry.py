"""One run in a list, as plain values: what a cached list can hold, and `stepscope list --json` prints."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple


class RunEntry(NamedTuple):
    """One run in a list: base units, None where nothing was measured. Step time (the median) and samples/s
    are those of its last 50 steps, without warm-up and transition; the peaks are those of the whole run."""

    run_id: str
    name: str
    # A RunState's value; of an unreadable run "lost".
    state: str
    message: str
    # True if the sentence needs attention although the state is regular.
    is_warning: bool
    # What is trained: "train.py", "cnn laptop".
    subject: str | None
    settings: Mapping[str, Any] | None
    script: Mapping[str, Any] | None
    device: Mapping[str, Any] | None
    parameters: int | None
    # None without a readable log, unless it has not been created yet.
    steps: int | None
    last_step: int | None
    loss: float | None
    step_ns: float | None
    samples_per_s: float | None
    allocated_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    created_unix_ns: int
    started_unix_ns: int | None
    ended_unix_ns: int | None
    is_simulated: bool
    # The source of an imported run.
    imported: Mapping[str, Any] | None
    # Versions of Python, torch, CUDA, …; empty without a log.
    versions: Mapping[str, Any]
    path: str
    # The reason that the log cannot be read; such a run can still be listed and deleted.
    problem: str | None
    tags: tuple[str, ...] = ()
    note: str = ""

    @property
    def device_name(self) -> str | None:
        """The name of the device in torch, "cuda:0"; None if unknown."""
        if self.device is None or not isinstance(self.device.get("kind"), str):
            return None
        kind, ordinal = self.device["kind"], self.device.get("ordinal")
        return f"{kind}:{ordinal}" if isinstance(ordinal, int) else str(kind)


_TEXT, _TEXT_OR_NONE = (str,), (str, NoneType)
_INT, _INT_OR_NONE, _NUMBER_OR_NONE = (int,), (int, NoneType), (int, float, NoneType)
_OBJECT, _OBJECT_OR_NONE = (dict,), (dict, NoneType)
# The types of the fields in JSON, in their order.
_KINDS: tuple[tuple[type, ...], ...] = (
    _TEXT, _TEXT, _TEXT, _TEXT, (bool,), _TEXT_OR_NONE, _OBJECT_OR_NONE, _OBJECT_OR_NONE, _OBJECT_OR_NONE,
    _INT_OR_NONE, _INT_OR_NONE, _INT_OR_NONE, _NUMBER_OR_NONE, _NUMBER_OR_NONE, _NUMBER_OR_NONE, _INT_OR_NONE,
    _INT_OR_NONE, _INT_OR_NONE, _INT, _INT_OR_NONE, _INT_OR_NONE, (bool,), _OBJECT_OR_NONE, _OBJECT, _TEXT,
    _TEXT_OR_NONE, (list,), _TEXT,
)  # fmt: skip


def entry_from_json(values: object) -> RunEntry:
    """Convert the JSON array of an entry's fields. Raises ValueError when one has another type."""
    if not isinstance(values, list) or len(values) != len(_KINDS):
        raise ValueError("it is not an entry of a list of runs")
    if not all(map(isinstance, values, _KINDS)) or not all(isinstance(tag, str) for tag in values[-2]):
        raise ValueError("a field has another type")
    return RunEntry._make([*values[:-2], tuple(values[-2]), values[-1]])
