"""A tick of the Live page does the same work at any length of a run, counted in calls, rows and instructions
of SQLite's virtual machine, which depend on no clock."""

import json

import pytest

from dashboard.data import runs
from dashboard.data.figures import Figures, figures
from harness.records.run import RunState
from harness.settings import Settings
from harness.store.home import Home
from harness.store.series import StepSeries
from tests.app.conftest import CPU
from tests.long_log import grow_long_log, write_long_log
from tests.store_factories import a_run
from tests.tick_work import TickWork, count_calls, count_queries

MOST_GROWTH = 1.05
# A thousand steps have 71 device samples, each drawn by itself; longer runs have 240 buckets of them.
MOST_SENT_GROWTH = 1.1
STEPS_PER_TICK = 14


def _work(home: Home, steps: int) -> TickWork:
    """The work of a tick of a page that is open for some: each finds a second of new steps."""
    folder = home.create(f"steps {steps}", Settings(), 1_700_000_000_000_000_000)
    row = a_run(folder.run_id)._replace(device=json.dumps(CPU._asdict()), state=RunState.RUNNING, simulated=1)
    with write_long_log(folder.log, row, steps) as log:
        view = runs.read_view(folder)
        read, _ = count_calls(folder, view, None)
        for tick in range(3):
            grow_long_log(log, steps + 1 + tick * STEPS_PER_TICK, STEPS_PER_TICK)
            if tick < 2:
                read, calls = count_calls(folder, view, read)
        _, work = count_queries(folder, view, read)
    return work._replace(calls=calls)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_tick_does_the_same_work_at_any_length_of_a_run(home: Home, steps: int) -> None:
    short, long = _work(home, 1_000), _work(home, steps)
    assert min(short) > 0
    *growth, sent_growth = (now / then for now, then in zip(long, short, strict=True))
    assert max(growth) <= MOST_GROWTH, (short, long)
    assert sent_growth <= MOST_SENT_GROWTH, (short, long)


def test_a_tick_that_is_continued_draws_what_one_from_the_beginning_draws(home: Home) -> None:
    folder = home.create("growing", Settings(), 1_700_000_000_000_000_000)
    row = a_run(folder.run_id)._replace(device=json.dumps(CPU._asdict()), state=RunState.RUNNING, simulated=1)
    with write_long_log(folder.log, row, 700) as log:
        device = runs.read_view(folder).device
        read, last = None, 700
        for steps in (14, 1, 300, 14, 2_000, 90):
            grow_long_log(log, last + 1, steps)
            last += steps
            read = figures(folder, device, None, None, False, read)
            whole = figures(folder, device, None, None, False)
            assert _without_sums(read) == _without_sums(whole)


def _without_sums(read: Figures) -> Figures:
    """Sums of floats differ in the last digit with the order in which they are added up."""

    def rounded(series: StepSeries | None) -> StepSeries | None:
        if series is None:
            return None
        rows = [
            tuple(float(f"{value:.10g}") if isinstance(value, float) else value for value in row)
            for row in series.rows
        ]
        return series._replace(rows=rows)

    return read._replace(steps=rounded(read.steps), device=rounded(read.device))
