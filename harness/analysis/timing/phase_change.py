"""Comparison of step times under two versions of the settings: an observation, not its cause."""

from typing import NamedTuple

from harness.analysis.timing.phases import StepPart, Timing


class PhaseChange(NamedTuple):
    """A median before and after, in ns; `part` is None for the whole step."""

    part: StepPart | None
    before_ns: float
    after_ns: float

    @property
    def percent(self) -> float | None:
        """The difference in percent of before; None from zero."""
        return 100 * (self.after_ns / self.before_ns - 1) if self.before_ns else None


class PhaseComparison(NamedTuple):
    """Medians of step and parts, on the device's clock where both ranges have one."""

    is_device: bool
    changes: tuple[PhaseChange, ...]


def compare(before: Timing, after: Timing) -> PhaseComparison | None:
    """Compare two ranges; None where one has no steady-state step. The step itself is always wall time."""
    if before.cpu is None or after.cpu is None:
        return None
    is_device = before.device is not None and after.device is not None
    old, new = (before.device, after.device) if is_device else (before.cpu, after.cpu)
    assert old is not None
    assert new is not None
    changes = [PhaseChange(None, before.cpu.step.p50, after.cpu.step.p50)]
    for part in StepPart:
        earlier, later = old.spread(part), new.spread(part)
        if earlier is not None and later is not None:
            changes.append(PhaseChange(part, earlier.p50, later.p50))
    return PhaseComparison(is_device, tuple(changes))
