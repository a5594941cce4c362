"""The scripts of `tests.bench.loops`, and its figures."""

import ast

import pytest

from tests.bench.loop_families import FAMILIES, draw_script, family_script
from tests.bench.loop_runs import Outcome
from tests.bench.loops import worst
from tests.bench.random_scripts import band


def test_a_seed_draws_the_same_script_again_and_each_script_can_be_parsed() -> None:
    for seed in range(200):
        text = draw_script(seed).text
        assert draw_script(seed).text == text
        ast.parse(text)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_scripts_that_can_be_parsed_and_that_record_their_steps(name: str) -> None:
    for seed in range(20):
        script = family_script(seed, name)
        ast.parse(script.text)
        assert script.words == name
        assert "record.updated(" in script.text
        assert "record.end(" in script.text


def test_a_script_has_no_line_of_stepscope() -> None:
    assert not any("stepscope" in draw_script(seed).text for seed in range(200))


def test_the_band_of_a_share_is_within_0_and_1() -> None:
    assert band(10, 10) == pytest.approx((0.722, 1.0), abs=0.001)
    assert band(0, 10) == pytest.approx((0.0, 0.278), abs=0.001)


def test_the_worst_loops_are_those_that_disturb_the_training() -> None:
    outcomes = [
        Outcome(draw_script(1), {"time": "a"}),
        Outcome(draw_script(2), {}),
        Outcome(draw_script(3), {"samples": "b", "weights": "c"}),
    ]
    lines = list(worst(outcomes, 10))
    assert [line.split(":")[0].strip() for line in lines] == ["seed 3", "seed 1"]
