"""Result of an inspection of a run's steps, as recorded in the log (`harness.watch.inspect.inspection`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.files.plain_json import json_object
from harness.records.run import EventKind, EventRow

# Functions of the workload, as they appear in a site.
_COPY_FUNCTION, _UPDATE_FUNCTION, _LAST_FUNCTION = "_to_device", "_update", "_tidy"
_WORKLOAD = "harness/train/workload.py"


class SyncLine(NamedTuple):
    """A line that made the CPU wait for the GPU. `site` has the form "model.py:12 forward"."""

    site: str
    code: str
    calls: int

    @property
    def place(self) -> str:
        """The line for display: "model.py:12 in loss.item()"."""
        return f"{self.site.rpartition(' ')[0] or self.site}{f' in {self.code}' if self.code else ''}"

    @property
    def is_within(self) -> bool:
        """True when work follows in the same step, unlike the read of the loss at its end."""
        return not (self.site.startswith(_WORKLOAD) and self.site.endswith(f" {_LAST_FUNCTION}"))

    @property
    def is_copy(self) -> bool:
        """True for a copy of the batch, which waits where memory is not pinned and has a rule of its own."""
        return self.site.startswith(_WORKLOAD) and self.site.endswith(f" {_COPY_FUNCTION}")

    @property
    def is_scaler(self) -> bool:
        """True for the optimizer's update, in which fp16's GradScaler checks gradients for overflow."""
        return self.site.startswith(_WORKLOAD) and self.site.endswith(f" {_UPDATE_FUNCTION}")


class MisplacedTensor(NamedTuple):
    """A tensor on another device than the training device. `what` is "parameter", "buffer", "optimizer state"
    or "loss"."""

    what: str
    name: str
    device: str
    size_bytes: int


class StepInspection(NamedTuple):
    """Synchronizing lines and misplaced tensors of `steps` steps; `lines` is None where torch cannot report
    synchronization."""

    first_step: int
    steps: int
    lines: tuple[SyncLine, ...] | None
    misplaced: tuple[MisplacedTensor, ...]

    @property
    def copies(self) -> list[SyncLine]:
        """The lines that copy batches and wait for the copy."""
        return [line for line in self.lines or () if line.is_copy]

    def lines_of_every_step(self) -> list[SyncLine]:
        """The lines that wait in every step without need, the most frequent first."""
        return [
            line
            for line in self.lines or ()
            if line.calls >= self.steps and not line.is_copy and not line.is_scaler
        ]


def latest_inspection(events: Sequence[EventRow], from_step: int) -> StepInspection | None:
    """The newest readable inspection of steps from `from_step` on, else None."""
    inspections = [
        event for event in events if event.kind == EventKind.INSPECTION and event.step >= from_step
    ]
    try:
        return None if not inspections else _read(json_object(inspections[-1].detail))
    except (ValueError, KeyError, TypeError):
        return None


def _read(detail: dict[str, Any]) -> StepInspection:
    syncs = detail["syncs"]
    return StepInspection(
        detail["first"],
        detail["steps"],
        None if syncs is None else tuple(SyncLine(**line) for line in syncs),
        tuple(MisplacedTensor(**tensor) for tensor in detail["elsewhere"]),
    )
