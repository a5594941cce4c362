"""Comparisons of runs: figures, intervals, settings, gates and aligned curves."""

import math

import numpy as np
import pytest

from harness.analysis.compare.curves import CurveAxis, positions, step_time_bins
from harness.analysis.compare.gates import judge, parse_gate
from harness.analysis.compare.pairs import common_figures, compare_pair, settings_that_differ
from harness.analysis.compare.parts import parts_side_by_side
from harness.analysis.memory.waterfall import MemoryBar, MemoryPart, Waterfall
from harness.errors import StepscopeError, UsageError
from tests.compare_factories import STEP_NS, some_run

NAMES = ("a", "b")


def test_a_run_with_longer_steps_is_slower_with_an_interval_around_the_change() -> None:
    pair = compare_pair(some_run("a"), some_run("b", 1.1 * STEP_NS, seed=1))
    figure = pair.figure("step_time")
    assert figure.low is not None
    assert figure.high is not None
    assert 1.0 < figure.low < 1.1 < figure.high < 1.2
    assert figure.is_visible
    assert pair.verdict.startswith("'b' was slower than 'a' (step time, median 2.00 ms → 2.2")


@pytest.mark.parametrize("seed", range(1, 6))
def test_two_runs_of_the_same_work_show_no_difference(seed: int) -> None:
    pair = compare_pair(some_run("a"), some_run("b", seed=seed))
    assert not pair.figure("step_time").is_visible
    assert "No difference in speed between 'a' and 'b' was detectable" in pair.verdict


def test_runs_of_different_batch_sizes_are_compared_by_samples_per_second() -> None:
    pair = compare_pair(some_run("a"), some_run("b", 1.5 * STEP_NS, seed=1, samples=64))
    assert pair.verdict.startswith("'b' was faster than 'a' (samples per second")


@pytest.mark.parametrize("samples", [0, 32])
def test_a_run_with_an_unknown_number_of_samples_is_compared_by_its_steps(samples: int) -> None:
    pair = compare_pair(some_run("a", samples=samples), some_run("b", 1.5 * STEP_NS, seed=1, samples=0))
    assert pair.figure("samples_per_s").after is None
    assert pair.verdict.startswith("'b' was slower than 'a' (step time, median 2.00 ms → 3.0")


def test_some_steps_with_an_unknown_number_of_samples_leave_the_rate_without_an_interval() -> None:
    run = some_run("b", seed=1)
    partly = run._replace(steady=[run.steady[0]._replace(samples=0), *run.steady[1:]])
    figure = compare_pair(some_run("a"), partly).figure("samples_per_s")
    assert figure.ratio == pytest.approx(1, abs=0.02)
    assert (figure.low, figure.high) == (None, None)


def test_the_sentence_says_that_each_run_took_place_once_and_which_settings_differ() -> None:
    other = some_run("b", settings={"batch_size": 64, "amp": "off", "dropout": 0.1})
    assert compare_pair(some_run("a"), other).verdict == (
        "No difference in speed between 'a' and 'b' was detectable (step time, median 2.00 ms → 2.00 ms, "
        "0 %, 95 % interval −2.0 % to +2.0 %); the same peak of memory (9.54 MiB); settings that differ: "
        "batch_size 32 → 64, dropout n/a → 0.1; each ran once, so another repetition may differ by more than "
        "the variation within these runs."
    )


def test_few_steps_give_no_interval() -> None:
    short = some_run("b")
    figure = compare_pair(some_run("a"), short._replace(steady=short.steady[:20])).figure("step_time")
    assert figure.ratio is not None
    assert figure.low is None
    assert not figure.is_visible


def test_a_run_without_steps_has_no_figure_in_common() -> None:
    empty = some_run("b", step_ns=0)
    assert common_figures([some_run("a"), empty]) == []
    assert "'b' has no steady-state step" in compare_pair(some_run("a"), empty).verdict


def test_a_setting_of_a_script_differs_from_none_and_one_of_the_catalog_that_it_lacks_does_not() -> None:
    rows = settings_that_differ([some_run("a"), some_run("b", settings={"amp": "bf16", "<b>knob</b>": 3})])
    assert {row.name: row.values for row in rows} == {
        "amp": ("off", "bf16"),
        "<b>knob</b>": ("n/a", "3"),
    }


def test_runs_of_two_scripts_or_with_other_arguments_are_not_said_to_have_the_same_settings() -> None:
    first, second = (some_run(lr, script=f"train.py --lr {lr}") for lr in ("0.1", "0.2"))
    (row,) = settings_that_differ([first, second])
    assert row.values == ("train.py --lr 0.1", "train.py --lr 0.2")
    assert "script train.py --lr 0.1 → train.py --lr 0.2" in compare_pair(first, second).verdict
    assert settings_that_differ([first, first]) == []


@pytest.mark.parametrize(
    ("text", "has_failed"),
    [
        ("step_time>+5%", True),
        ("step_time>5%", True),
        ("step_time>+15%", False),
        ("step_time>+0.1ms", True),
        ("step_time>+300us", False),
        ("step_time>=2.1 ms", True),
        ("samples_per_s<-5%", True),
        ("samples_per_s<1000", False),
        ("peak_allocated>8GiB", False),
        ("final_loss>0.4", True),
    ],
)
def test_a_gate_is_relative_with_a_sign_or_percent_and_absolute_without(text: str, has_failed: bool) -> None:
    pair = compare_pair(some_run("a"), some_run("b", 1.1 * STEP_NS, seed=1))
    assert judge(parse_gate(text), pair, NAMES).has_failed is has_failed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("faster", "'faster' is not a gate"),
        ("speed>+5%", "There is no figure 'speed'"),
        ("step_time>5", "needs a unit of step_time: ns, us, µs, ms, s, %"),
        ("samples_per_s<5%", "write samples_per_s<-5%"),
    ],
)
def test_a_gate_that_cannot_be_parsed_is_rejected_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_gate(text)


def test_a_gate_on_a_figure_that_a_run_lacks_cannot_be_judged() -> None:
    pair = compare_pair(some_run("a"), some_run("b", final_loss=None))
    with pytest.raises(StepscopeError, match="final loss is n/a in 'b'"):
        judge(parse_gate("final_loss>+5%"), pair, NAMES)


def test_a_loss_that_is_not_a_number_fails_its_gate() -> None:
    pair = compare_pair(some_run("a"), some_run("b", final_loss=math.nan))
    assert judge(parse_gate("final_loss>+5%"), pair, NAMES).has_failed


def test_a_part_of_the_memory_that_a_run_lacks_is_zero_and_one_not_measured_unknown() -> None:
    def memory(*parts: tuple[MemoryPart, str, int]) -> Waterfall:
        return Waterfall(tuple(MemoryBar(place, name, size, "") for place, name, size in parts), 100, 0)

    weights, others = (MemoryPart.WEIGHTS, "weights", 9), (MemoryPart.OTHERS, "other processes", 50)
    adam = memory(others, weights, (MemoryPart.OPTIMIZER, "optimizer state", 18))
    unknown = memory((MemoryPart.UNDIVIDED, "allocated, not broken down", 30))
    rows = parts_side_by_side([adam, memory(weights), unknown, None])
    assert [(row.name, *row.sizes) for row in rows] == [
        ("weights", 9, 9, None, None),
        ("optimizer state", 18, 0, None, None),
        ("allocated, not broken down", 0, 0, 30, None),
    ]


def test_curves_align_by_steps_seconds_and_samples() -> None:
    buckets = {
        "bucket": [0, 4, 12],
        "rows": [4, 4, 4],
        "t_ns_first": [0, 4_000_000_000, 20_000_000_000],
        "t_ns_last": [2_000_000_000, 6_000_000_000, 22_000_000_000],
        "samples_sum": [40, 40, 80],
    }
    assert positions(CurveAxis.STEP, buckets).tolist() == [1.5, 5.5, 13.5]
    assert positions(CurveAxis.TIME, buckets).tolist() == [1.0, 5.0, 21.0]
    # Steps 8 to 11 have no row and count as many samples as those before them.
    assert positions(CurveAxis.SAMPLES, buckets).tolist() == [20.0, 60.0, 160.0]
    assert positions(CurveAxis.TIME, {name: [] for name in buckets}).tolist() == []
    unknown = buckets | {"samples_sum": [0, 0, 0]}
    assert np.isnan(positions(CurveAxis.SAMPLES, unknown)).tolist() == [True] * 3


def test_distributions_share_their_bins_and_each_sums_to_one() -> None:
    bins = step_time_bins([[100, 110, 120], [100_000] * 4, []])
    assert bins is not None
    assert [round(float(np.sum(shares)), 6) for shares in bins.shares] == [1.0, 1.0, 0.0]
    assert step_time_bins([[], []]) is None
