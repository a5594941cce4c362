"""For any step times, phases and residual sum to the step, and shares to one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.timing.phases import StepPart, Timing, analyze
from harness.analysis.timing.slow_steps import slowest
from harness.analysis.timing.verdict import MIN_STEPS, Bound, verdict
from harness.records.run import StepRow
from harness.supervisor.timing import WHOLE, apart
from tests.timing_factories import a_timed_step, on_device

TIMES = st.floats(0.0, 1e4)
PHASES = st.fixed_dictionaries(
    dict.fromkeys(("wait", "h2d", "forward", "backward", "optimizer"), TIMES)
    | {"rest": st.floats(0.001, 1e4)}
)
PARTS = st.none() | st.tuples(TIMES, st.tuples(TIMES, TIMES, TIMES, st.floats(0.001, 1e4)))
FLAGS = st.sampled_from([0, 0, 0, 1, 2, 4, 8])


@st.composite
def rows(draw: st.DrawFn) -> list[StepRow]:
    steps: list[StepRow] = []
    end_ns = 0
    for step in range(1, draw(st.integers(0, 40)) + 1):
        row = a_timed_step(step, **draw(PHASES))._replace(flags=draw(FLAGS))
        end_ns += row.step_ns
        row = row._replace(t_ns=end_ns)
        timed = draw(PARTS)
        steps.append(row if timed is None else on_device(row, gap=timed[0], parts=timed[1]))
    return steps


def _check_clocks(timing: Timing) -> None:
    for times in filter(None, (timing.cpu, timing.device)):
        total = sum(entry.spread.mean for entry in times.parts)
        gap = times.spread(StepPart.GAP)
        period = times.step.mean + (0 if gap is None else gap.mean)
        assert abs(total - period) <= 1e-6 * max(period, 1)
        assert abs(sum(entry.share for entry in times.parts) - 1) < 1e-6
        for spread in (times.step, *(entry.spread for entry in times.parts)):
            assert spread.p50 <= spread.p95 <= spread.p99


@given(rows())
def test_phases_and_residual_are_the_step_and_steps_chain_to_wall_time(steps: list[StepRow]) -> None:
    timing = analyze(steps)
    _check_clocks(timing)
    assert timing.examined + timing.left_out == len(steps)
    assert timing.unsound_steps == 0
    if len(steps) > 1:
        assert timing.between_steps_ns == 0
    if timing.launch is not None:
        assert 0 <= timing.launch.share <= 1


@pytest.mark.slow
@given(rows(), st.booleans())
def test_a_verdict_is_given_for_any_run_and_only_from_enough_steps(
    steps: list[StepRow], is_asynchronous: bool
) -> None:
    timing = analyze(steps)
    result = verdict(timing, is_asynchronous)
    assert result.sentence.endswith(".")
    if timing.examined < MIN_STEPS:
        assert result.bound is Bound.TOO_FEW
    listed = slowest(steps, timing.cpu, [])
    assert [slow.step_ns for slow in listed] == sorted((slow.step_ns for slow in listed), reverse=True)


@given(st.integers(1, 10**9))
def test_a_range_of_any_length_is_read_at_about_the_same_cost(steps: int) -> None:
    stride = apart(steps)
    assert steps / stride <= WHOLE
    assert (stride == 1) == (steps <= WHOLE)
    assert steps <= WHOLE or steps / stride > WHOLE / 4
