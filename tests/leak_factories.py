"""Rows of steps with memory in them, for what judges leaks."""

from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepFlag, StepRow
from tests.store_factories import a_step

MIB, GIB = 2**20, 2**30
_SETTLED = 6


def a_row(step: int, allocated: int = GIB, reserved: int = 2 * GIB, rss: int = 3 * GIB) -> StepRow:
    """The row of a step of a tenth of a second."""
    return a_step(step)._replace(
        t_ns=step * 100_000_000,
        step_ns=100_000_000,
        allocated_bytes=allocated,
        peak_allocated_bytes=allocated,
        reserved_bytes=reserved,
        rss_bytes=rss,
        settings_version=1,
        flags=int(StepFlag.WARM_UP) if step < _SETTLED else 0,
    )


def a_leak(since_step: int = 6) -> LeakRow:
    """A leak of live tensors of 1 MB per step."""
    slopes = (1e6, 1e6, 1e6)
    kind = (LeakSeries.ALLOCATED, LeakVerdict.LEAK)
    return LeakRow(0, since_step + 200, *kind, since_step, *slopes, 10**8, None, None, "It grows.", None)
