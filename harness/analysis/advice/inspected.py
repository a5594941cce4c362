"""What an inspection of a run's steps found, as the log has it (`harness.train.inspection`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.plain_json import json_object
from harness.records import EventKind, EventRow

# Functions of the workload.
_COPIES, _UPDATE, _AT_THE_END = "_to_device", "_update", "_tidy"
_OWN = "harness/train/workload.py"


class Line(NamedTuple):
    """A line that made the CPU wait for the GPU. `site` is as in "model.py:12 forward"."""

    site: str
    code: str
    calls: int

    @property
    def place(self) -> str:
        """As in "model.py:12 in loss.item()"."""
        return f"{self.site.rpartition(' ')[0] or self.site}{f' in {self.code}' if self.code else ''}"

    @property
    def is_within(self) -> bool:
        """Whether the device has work left to do in the step behind it: not the loss read at its end."""
        return not (self.site.startswith(_OWN) and self.site.endswith(f" {_AT_THE_END}"))

    @property
    def is_copy(self) -> bool:
        """Whether it copies the batch, which waits where memory is not pinned: a rule of its own."""
        return self.site.startswith(_OWN) and self.site.endswith(f" {_COPIES}")

    @property
    def is_scaler(self) -> bool:
        """Whether it is the update, in which fp16's scaler asks whether a gradient overflowed."""
        return self.site.startswith(_OWN) and self.site.endswith(f" {_UPDATE}")


class Elsewhere(NamedTuple):
    """A tensor that is not on the device trained on. `what` is "parameter", "buffer", "optimizer state" or
    "loss"."""

    what: str
    name: str
    device: str
    size_bytes: int


class Inspected(NamedTuple):
    """`lines` is None where synchronising calls cannot be told."""

    first: int
    steps: int
    lines: tuple[Line, ...] | None
    elsewhere: tuple[Elsewhere, ...]

    @property
    def copies(self) -> list[Line]:
        """The lines that copy batches and wait for the copy."""
        return [line for line in self.lines or () if line.is_copy]

    def every_step(self) -> list[Line]:
        """The lines that make the CPU wait in every step and need not, the most frequent first."""
        return [
            line
            for line in self.lines or ()
            if line.calls >= self.steps and not line.is_copy and not line.is_scaler
        ]


def newest(events: Sequence[EventRow], from_step: int) -> Inspected | None:
    """The newest inspection of steps from `from_step` on; None where there is none that can be read."""
    found = [event for event in events if event.kind == EventKind.INSPECTION and event.step >= from_step]
    try:
        return None if not found else _read(json_object(found[-1].detail))
    except (ValueError, KeyError, TypeError):
        return None


def _read(detail: dict[str, Any]) -> Inspected:
    syncs = detail["syncs"]
    return Inspected(
        detail["first"],
        detail["steps"],
        None if syncs is None else tuple(Line(**line) for line in syncs),
        tuple(Elsewhere(**one) for one in detail["elsewhere"]),
    )
