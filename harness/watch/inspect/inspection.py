"""Inspection of the last transient steps: lines that make the CPU wait for the GPU, and misplaced tensors.

It runs after the warm-up and after each change of settings, in steps left out of statistics. There is no
overhead on all other steps.
"""

import json
from collections.abc import Sequence

from harness import words
from harness.device.accelerator import can_debug_syncs
from harness.records.run import RECORDED_FLAGS, EventKind, EventRow, Severity
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.inspect.placement import Misplaced, misplaced
from harness.watch.inspect.syncs import SyncCatcher, SyncSite
from harness.watch.training import Training

# Inspected steps each time.
STEPS = 2
_MOST_SITES = 12
_NAME = "inspection"
# Separate, so that a dropped inspection can still be ended.
_NAME_OF_END = "end of an inspection"


class Inspection(StepAction):
    """Used on the training thread, between two steps."""

    def __init__(self, context: RunContext, training: Training, catcher: SyncCatcher | None = None) -> None:
        """`catcher` is None where torch cannot detect synchronizing calls."""
        self._training = training
        self._device = context.device
        self._journal = context.journal
        self._guarded = context.guard.run
        self._clock_ns = context.clock_ns
        self._catcher = catcher
        self._first: int | None = None
        self._is_counting = False

    def before_step(self, boundary: Boundary) -> None:
        """Begin or end an inspection, where that is due before the next step."""
        step, last = boundary.step, boundary.unsettled_until
        is_due = last - STEPS < step <= last and not boundary.flags & RECORDED_FLAGS
        if is_due == (self._first is not None):
            return
        if not self._guarded(_NAME, lambda: self._begin(step) if is_due else self._end(step)):
            self._leave()
        boundary.restart()

    def finish(self, boundary: Boundary) -> None:
        """Discard an incomplete inspection."""
        del boundary
        self._leave()

    def abort(self, step: int, why: str) -> None:
        """End the inspection without a result. Idempotent."""
        del step, why
        self._leave()

    def _leave(self) -> None:
        self._first = None
        if self._catcher is not None and self._catcher.is_on:
            self._guarded(_NAME_OF_END, self._stop)

    def _begin(self, step: int) -> None:
        self._first = step
        self._is_counting = self._catcher is not None and self._catcher.start()

    def _stop(self) -> None:
        assert self._catcher is not None
        self._catcher.stop()

    def _end(self, step: int) -> None:
        first, self._first = self._first, None
        assert first is not None
        sites = self._catcher.stop() if self._catcher is not None and self._is_counting else None
        elsewhere = misplaced(self._training, self._device.torch_device)
        if step > first and (sites is not None or elsewhere):
            self._journal.put(self._event(first, step, sites, elsewhere))

    def _event(
        self, first: int, step: int, sites: Sequence[SyncSite] | None, elsewhere: Sequence[Misplaced]
    ) -> EventRow:
        steps = step - first
        detail = {
            "first": first,
            "steps": steps,
            "syncs": None if sites is None else [site._asdict() for site in sites[:_MOST_SITES]],
            "elsewhere": [one._asdict() for one in elsewhere],
        }
        message = " ".join((*_syncs(sites, steps), *_places(elsewhere, str(self._device.torch_device))))
        kind, severity = EventKind.INSPECTION, Severity.INFO
        return EventRow(
            self._clock_ns(), step - 1, kind, severity, "inspection", message, json.dumps(detail), None
        )


def open_inspection(context: RunContext, training: Training) -> Inspection | None:
    """Return the inspection of a run; None on the CPU, which has no device to wait for."""
    device = context.device.torch_device
    if device.type == "cpu":
        return None
    return Inspection(context, training, SyncCatcher() if can_debug_syncs(device) else None)


def _syncs(sites: Sequence[SyncSite] | None, steps: int) -> list[str]:
    if sites is None:
        return []
    steps_text = words.plural(steps, "step")
    if not sites:
        return [f"No line made the CPU wait for the GPU in {steps_text}."]
    total = sum(site.calls for site in sites)
    most = sites[0]
    where = f"{most.site.rpartition(' ')[0]} in {most.code}" if most.code else most.site
    return [
        f"The CPU waited for the GPU {words.plural(total, 'time')} in {steps_text}, "
        f"{words.plural(most.calls, 'time')} at {where}."
    ]


def _places(elsewhere: Sequence[Misplaced], device: str) -> list[str]:
    if not elsewhere:
        return []
    first, more = elsewhere[0], len(elsewhere) - 1
    others = f" and {words.plural(more, 'more tensor')}" if more else ""
    return [f"The {first.what} {first.name} ({words.size(first.size_bytes)}){others} is not on {device}."]
