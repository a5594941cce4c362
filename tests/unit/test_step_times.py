"""Step times of real training on the CPU: they sum to wall time, and an injected delay shows in its phase."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from harness.analysis.timing.phases import StepPart, analyze
from harness.analysis.timing.slow_steps import slowest
from harness.records.run import StepRow
from harness.train.loop import train
from harness.train.workload import Workload
from harness.watch.context import Marks
from harness.watch.memory import MemoryWatch
from harness.watch.recorder import Recorder
from harness.watch.timing import StepTimer
from tests.train_factories import LoopSteps, a_device, a_workload

# Far above the delay that load of the machine adds to a step of about a millisecond.
DELAY_S = 0.1
# Phases delayed in consecutive steps in turn, so that all run under the same load.
INJECTED = (None, StepPart.DATA_WAIT, StepPart.FORWARD, StepPart.OPTIMIZER)
STEPS = 11 * len(INJECTED)


class Steps:
    """Lets so many steps happen; when it was asked for each, and last."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.step = 0
        self.asked_ns: list[int] = []

    def proceed(self, step: int) -> bool:
        self.asked_ns.append(time.perf_counter_ns())
        self.step = step
        return step <= self._steps


def trained(workload: Workload, conductor: Steps) -> list[StepRow]:
    """The rows of a run, as its recorder makes them."""
    marks = Marks(flags=0)
    recorder = Recorder(MemoryWatch(a_device()), marks, lambda event: None, zero_ns=time.perf_counter_ns())
    timer = StepTimer(time.perf_counter_ns)
    train(workload, LoopSteps(conductor.proceed, recorder.step_ended, timer))
    return recorder.collect()


def delayed(
    function: Callable[..., Any], is_due: Callable[[], bool], took_ns: list[int], delay_s: float = DELAY_S
) -> Callable[..., Any]:
    """`function`, after a sleep where it is due; how long that really took is put down."""

    def later(*args: Any) -> Any:
        if is_due():
            begun_ns = time.perf_counter_ns()
            time.sleep(delay_s)
            took_ns.append(time.perf_counter_ns() - begun_ns)
        return function(*args)

    return later


@pytest.mark.slow
def test_steps_sum_to_wall_time_within_one_percent() -> None:
    conductor = Steps(40)
    rows = trained(a_workload(model="cnn", batch_size=16), conductor)
    # A step begins where the one before ended, so that none of the time is left out.
    assert sum(row.step_ns for row in rows[1:]) == rows[-1].t_ns - rows[0].t_ns
    # By the median: on a busy machine another process may come in between the two clocks.
    walls_ns = [after - before for before, after in pairwise(conductor.asked_ns)]
    shares = [row.step_ns / wall_ns for row, wall_ns in zip(rows, walls_ns, strict=True)]
    assert statistics.median(shares) == pytest.approx(1.0, abs=0.01)
    timing = analyze(rows)
    assert timing.between_steps_ns == 0
    assert timing.unsound_steps == 0
    assert timing.cpu is not None
    assert sum(entry.share for entry in timing.cpu.parts) == pytest.approx(1.0)


@pytest.mark.slow
def test_an_injected_delay_shows_in_its_phase_within_five_percent() -> None:
    workload, conductor = a_workload(), Steps(STEPS)
    took_ns: dict[StepPart, list[int]] = {part: [] for part in INJECTED if part is not None}

    def due(part: StepPart) -> Callable[[], bool]:
        return lambda: INJECTED[conductor.step % len(INJECTED)] is part

    workload.next_batch = delayed(workload.next_batch, due(StepPart.DATA_WAIT), took_ns[StepPart.DATA_WAIT])
    workload.forward = delayed(workload.forward, due(StepPart.FORWARD), took_ns[StepPart.FORWARD])
    workload.update = delayed(workload.update, due(StepPart.OPTIMIZER), took_ns[StepPart.OPTIMIZER])
    rows = trained(workload, conductor)
    columns = {
        StepPart.DATA_WAIT: "data_wait_ns",
        StepPart.FORWARD: "forward_ns",
        StepPart.OPTIMIZER: "optimizer_ns",
    }
    groups = {
        injected: [row for row in rows if INJECTED[row.step % len(INJECTED)] is injected]
        for injected in INJECTED
    }
    for delayed_part, sleeps_ns in took_ns.items():
        assert len(sleeps_ns) == len(groups[delayed_part])
        for part, column in columns.items():
            # The duration of the phase without the sleep in the same step. Load of the machine only adds to
            # it, so the least of eleven steps is compared: a sleep that is lost in any of them lowers it.
            rest_ns = [
                getattr(row, column) - (sleep_ns if part is delayed_part else 0)
                for row, sleep_ns in zip(groups[delayed_part], sleeps_ns, strict=True)
            ]
            least_without_ns = min(getattr(row, column) for row in groups[None])
            assert abs(min(rest_ns) - least_without_ns) < 0.05 * min(sleeps_ns), (delayed_part, part)


@pytest.mark.slow
def test_a_single_delayed_step_is_the_slowest_and_has_its_phase() -> None:
    workload, conductor = a_workload(), Steps(60)
    workload.update = delayed(workload.update, lambda: conductor.step == 40, [], 1.0)
    rows = [row for row in trained(workload, conductor) if row.step > 5]
    result = slowest(rows, analyze(rows).cpu, [])
    assert (result[0].step, result[0].part) == (40, StepPart.OPTIMIZER)
