"""The scripts of `tests.bench.loops`, and its figures."""

import ast

import pytest

from tests.bench.loop_draws import draw_loop
from tests.bench.loop_runs import Outcome
from tests.bench.loop_script import script_of
from tests.bench.loops import band, worst


def test_a_seed_draws_the_same_script_again_and_each_script_can_be_parsed() -> None:
    for seed in range(200):
        text = script_of(draw_loop(seed))
        assert script_of(draw_loop(seed)) == text
        ast.parse(text)


def test_a_script_has_no_line_of_stepscope() -> None:
    assert not any("stepscope" in script_of(draw_loop(seed)) for seed in range(200))


def test_the_band_of_a_share_is_within_0_and_1() -> None:
    assert band(10, 10) == pytest.approx((0.722, 1.0), abs=0.001)
    assert band(0, 10) == pytest.approx((0.0, 0.278), abs=0.001)


def test_the_worst_loops_are_those_that_disturb_the_training() -> None:
    outcomes = [
        Outcome(draw_loop(1), {"time": "a"}),
        Outcome(draw_loop(2), {}),
        Outcome(draw_loop(3), {"samples": "b", "weights": "c"}),
    ]
    lines = list(worst(outcomes, 10))
    assert [line.split(":")[0].strip() for line in lines] == ["seed 3", "seed 1"]
