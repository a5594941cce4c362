"""Looks at a run's last unsettled steps: which lines make the CPU wait for the GPU, what lies elsewhere.

That is after the warm-up and after each change of settings, in steps that no statistics count. All other
steps pay nothing.
"""

import json
from collections.abc import Callable, Sequence

from harness import words
from harness.device.accelerator import can_debug_syncs
from harness.device.protocol import Device
from harness.records import EventKind, EventRow, Severity
from harness.tracking.blocks import Guarded
from harness.train.journal import Journal
from harness.train.placement import Misplaced, misplaced
from harness.train.syncs import SyncCatcher, SyncSite
from harness.train.workload import Workload

STEPS = 2
"""Steps looked at each time."""
_MOST_SITES = 12
_NAME = "inspection"
_NAME_OF_END = "end of an inspection"
"""Apart, so that an inspection that was dropped can still be ended."""


class Inspection:
    """Used on the training thread, between two steps. `guarded` runs what must not break training."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        journal: Journal,
        guarded: Guarded,
        clock_ns: Callable[[], int],
        catcher: SyncCatcher | None = None,
    ) -> None:
        """`catcher` is None where torch cannot tell synchronising calls."""
        self._workload = workload
        self._device = device
        self._journal = journal
        self._guarded = guarded
        self._clock_ns = clock_ns
        self._catcher = catcher
        self._first: int | None = None
        self._is_counting = False

    def before_step(self, step: int, unsettled_until: int, is_profiled: bool) -> bool:
        """Begin or end a look, where that is due before the step numbered `step`; whether it was.
        `unsettled_until` is the last step that statistics leave out."""
        is_wanted = unsettled_until - STEPS < step <= unsettled_until and not is_profiled
        if is_wanted == (self._first is not None):
            return False
        if not self._guarded(_NAME, lambda: self._begin(step) if is_wanted else self._end(step)):
            self.abort()
        return True

    def abort(self) -> None:
        """Leave everything as it was before. Idempotent."""
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
        elsewhere = misplaced(self._workload, self._device.torch_device)
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


def open_inspection(
    workload: Workload,
    device: Device,
    journal: Journal,
    guarded: Guarded,
    clock_ns: Callable[[], int],
) -> Inspection | None:
    """The inspection of a run on `device`; None on the CPU, which waits for nothing but itself."""
    if device.torch_device.type == "cpu":
        return None
    catcher = SyncCatcher() if can_debug_syncs(device.torch_device) else None
    return Inspection(workload, device, journal, guarded, clock_ns, catcher)


def _syncs(sites: Sequence[SyncSite] | None, steps: int) -> list[str]:
    if sites is None:
        return []
    looked_at = words.plural(steps, "step")
    if not sites:
        return [f"No line made the CPU wait for the GPU in {looked_at}."]
    total = sum(site.calls for site in sites)
    most = sites[0]
    where = f"{most.site.rpartition(' ')[0]} in {most.code}" if most.code else most.site
    return [
        f"The CPU waited for the GPU {words.plural(total, 'time')} in {looked_at}, "
        f"{words.plural(most.calls, 'time')} at {where}."
    ]


def _places(elsewhere: Sequence[Misplaced], device: str) -> list[str]:
    if not elsewhere:
        return []
    first, more = elsewhere[0], len(elsewhere) - 1
    others = f" and {words.plural(more, 'more tensor')}" if more else ""
    return [f"The {first.what} {first.name} ({words.size(first.size_bytes)}){others} is not on {device}."]
