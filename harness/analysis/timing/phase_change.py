"""The time of steps under two versions of the settings side by side: what was observed, not its cause."""

from typing import NamedTuple

from harness.analysis.timing.phases import Part, Timing


class Change(NamedTuple):
    """A median before and after, in nanoseconds; `part` None is the step itself."""

    part: Part | None
    before_ns: float
    after_ns: float

    @property
    def percent(self) -> float | None:
        """The difference in per cent of before; None from nothing."""
        return 100 * (self.after_ns / self.before_ns - 1) if self.before_ns else None


class Comparison(NamedTuple):
    """The medians of steps and parts; on the device's clock where both ranges have one."""

    is_device: bool
    changes: tuple[Change, ...]


def compare(before: Timing, after: Timing) -> Comparison | None:
    """The two ranges side by side; None where one has no settled step. The step is always wall time."""
    if before.cpu is None or after.cpu is None:
        return None
    is_device = before.device is not None and after.device is not None
    old, new = (before.device, after.device) if is_device else (before.cpu, after.cpu)
    assert old is not None
    assert new is not None
    changes = [Change(None, before.cpu.step.p50, after.cpu.step.p50)]
    for part in Part:
        one, other = old.spread(part), new.spread(part)
        if one is not None and other is not None:
            changes.append(Change(part, one.p50, other.p50))
    return Comparison(is_device, tuple(changes))
