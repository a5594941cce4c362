"""The measured effect from blocks in pairs: verdicts, intervals, and reasons not to trust them."""

import math
import random

import pytest
from scipy import stats

from harness.analysis.effect.doubts import ArmConditions, Conditions, doubts
from harness.analysis.effect.measured import (
    BlockFigures,
    MeasuredFigure,
    Word,
    measure_effect,
    undisturbed_ns,
)
from harness.analysis.effect.pairs import CONFIDENCE, paired_difference, signed_rank_p_value
from harness.records.measurement import Arm
from harness.records.telemetry import ThrottleReason
from tests.measuring_factories import some_blocks

CALM = ArmConditions(1_900.0, 0)
UNSUSPICIOUS = Conditions(CALM, CALM, 0, 0, 0, (), None)


def figure(blocks: list[BlockFigures], name: str) -> MeasuredFigure:
    return next(one for one in measure_effect(blocks).figures if one.kind.name == name)


@pytest.mark.parametrize(("ratio", "word"), [(0.9, Word.FASTER), (1.02, Word.SLOWER)])
def test_a_difference_is_called_with_an_interval_that_contains_it(ratio: float, word: Word) -> None:
    main = measure_effect(some_blocks(ratio=ratio)).main
    assert main.word is word
    assert main.low is not None
    assert main.high is not None
    assert main.low <= ratio - 1 <= main.high


def test_an_interval_within_one_percent_is_no_practical_difference() -> None:
    assert measure_effect(some_blocks(ratio=1.003)).main.word is Word.NO_PRACTICAL_DIFFERENCE


@pytest.mark.long
def test_without_an_effect_a_difference_is_called_in_at_most_five_percent() -> None:
    called = [measure_effect(some_blocks(8, noise=0.03, seed=seed)).main.word for seed in range(300)]
    share = sum(word in (Word.FASTER, Word.SLOWER) for word in called) / len(called)
    assert 0 < share <= 0.05


@pytest.mark.long
def test_a_drift_is_no_effect() -> None:
    words = [measure_effect(some_blocks(8, drift=0.03, seed=seed)).main.word for seed in range(200)]
    assert sum(word in (Word.FASTER, Word.SLOWER) for word in words) <= 10


@pytest.mark.slow
def test_an_inconclusive_result_says_how_many_pairs_would_settle_it() -> None:
    effect = measure_effect(some_blocks(8, ratio=1.01, noise=0.02, seed=3))
    main = effect.main
    assert main.word is Word.INCONCLUSIVE
    assert main.more_pairs is not None
    assert effect.sentence.startswith(f"Inconclusive: about {main.more_pairs} more pairs: ")
    more = [
        measure_effect(some_blocks(8 + 2 * main.more_pairs, 1.01, noise=0.02, seed=seed)).main.word
        for seed in range(20)
    ]
    assert sum(word is not Word.INCONCLUSIVE for word in more) >= 10


def test_single_disturbed_blocks_do_not_hide_an_effect() -> None:
    blocks = some_blocks(ratio=1.02, noise=0.003)
    for number in (4, 21):
        blocks[number] = blocks[number]._replace(step_ns=3 * blocks[number].step_ns)
    assert measure_effect(blocks).main.word is Word.SLOWER


def test_the_time_per_sample_is_compared_where_the_batch_size_differs() -> None:
    effect = measure_effect(some_blocks(ratio=1.5, samples=(32, 64)))
    assert effect.main.kind.name == "undisturbed time per sample"
    assert effect.is_better
    assert figure(some_blocks(ratio=1.5, samples=(32, 64)), "undisturbed step").word is Word.SLOWER


def test_all_steps_decide_where_the_undisturbed_step_does_not_stand_for_them() -> None:
    blocks = [
        block._replace(total_ns=block.total_ns * 10) if block.arm is Arm.B else block
        for block in some_blocks(ratio=0.05)
    ]
    effect = measure_effect(blocks)
    assert effect.main.kind.name == "time per sample, all steps"
    assert effect.main.effect == pytest.approx(-0.5, abs=0.01)
    assert effect.main.word is Word.FASTER
    assert [one.kind.name for one in effect.figures[1:3]] == ["undisturbed step", "samples/s, all steps"]


def test_memory_that_is_the_same_in_every_block_has_an_exact_effect() -> None:
    blocks = [
        block._replace(peak_allocated_bytes=(80 if block.arm is Arm.B else 100) << 20)
        for block in some_blocks()
    ]
    peak = figure(blocks, "peak allocated")
    assert peak.effect is not None
    assert math.isclose(peak.effect, -0.2)
    assert peak.low == peak.high == peak.effect
    assert peak.word is Word.LESS


def test_the_loss_is_compared_by_its_difference() -> None:
    rng = random.Random(2)
    blocks = [
        block._replace(loss=0.5 + (0.2 if block.arm is Arm.B else 0.0) + rng.gauss(0, 0.05))
        for block in some_blocks()
    ]
    loss = figure(blocks, "loss")
    assert loss.word is Word.HIGHER
    assert loss.low is not None
    assert loss.high is not None
    assert loss.low <= 0.2 <= loss.high


def test_a_figure_that_was_not_measured_is_not_available() -> None:
    energy = figure(some_blocks(), "energy per sample")
    assert (energy.word, energy.effect, energy.verdict) == (Word.NOT_AVAILABLE, None, "not measured")


def test_a_figure_is_compared_over_the_pairs_that_have_it() -> None:
    blocks = [block._replace(loss=None) if block.pair <= 5 else block for block in some_blocks()]
    assert figure(blocks, "loss").effect == 0


def test_too_few_pairs_are_not_compared() -> None:
    effect = measure_effect(some_blocks(4))
    assert effect.main.word is Word.NOT_AVAILABLE
    assert effect.sentence == "Not compared: 4 pairs, 8 are needed."
    assert measure_effect([]).sentence == "Not compared: 0 pairs, 8 are needed."


def test_a_change_that_makes_all_steps_slower_together_is_not_better() -> None:
    blocks = [
        block._replace(total_ns=block.total_ns * 2) if block.arm is Arm.B else block
        for block in some_blocks(ratio=0.9)
    ]
    effect = measure_effect(blocks)
    assert effect.main.word is Word.SLOWER
    assert not effect.is_better


@pytest.mark.parametrize(("looks", "moments"), [(1, [1.0]), (2, [0.5, 1.0]), (3, [0.25, 0.5, 1.0])])
def test_however_often_it_is_judged_3_percent_are_called_without_an_effect(
    looks: int, moments: list[float]
) -> None:
    """The statistic at two moments of a Brownian motion is correlated by the root of their ratio."""
    bound = stats.norm.isf((1 - CONFIDENCE[looks]) / 2)
    covariance = [[math.sqrt(min(a, b) / max(a, b)) for b in moments] for a in moments]
    limits = [bound] * looks
    never = stats.multivariate_normal(cov=covariance).cdf(limits, lower_limit=[-one for one in limits])
    assert 1 - never == pytest.approx(0.03, abs=0.001)


@pytest.mark.parametrize("count", [8, 9, 15, 40, 80])
def test_the_interval_holds_the_shifts_that_the_signed_rank_test_does_not_reject(count: int) -> None:
    rng = random.Random(count)
    differences = [rng.gauss(0.01, 0.02) for _ in range(count)]
    result = paired_difference(differences)

    def p_value(shift: float) -> float:
        return float(stats.wilcoxon([value - shift for value in differences]).pvalue)

    width = result.high - result.low
    assert p_value(result.low + 1e-6 * width) > 1 - CONFIDENCE[1] >= p_value(result.low - 1e-6 * width)
    assert p_value(result.high - 1e-6 * width) > 1 - CONFIDENCE[1] >= p_value(result.high + 1e-6 * width)
    assert result.low < result.typical < result.high


@pytest.mark.filterwarnings("ignore:Sample size too small:UserWarning")
@pytest.mark.parametrize("count", [7, 9, 14])
def test_the_p_value_is_that_of_the_signed_rank_test_also_with_ties_and_zeros(count: int) -> None:
    rng = random.Random(count)
    for differences in (
        [rng.gauss(0.5, 1.0) for _ in range(count)],
        [float(rng.choice([0, 1, 1, 2, -1])) for _ in range(count)],
    ):
        expected = float(stats.wilcoxon(differences).pvalue)
        assert signed_rank_p_value(differences) == pytest.approx(expected, rel=1e-12)


def test_steps_that_something_delayed_do_not_count_as_undisturbed() -> None:
    assert undisturbed_ns([*range(100, 120), *[10_000] * 100]) < 120


def test_nothing_suspicious_gives_no_reason_for_doubt() -> None:
    assert doubts(UNSUSPICIOUS) == []
    assert doubts(UNSUSPICIOUS._replace(a=ArmConditions(None, 0), other_cores=0.2)) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"b": ArmConditions(1_700.0, 0)}, "clocks differ: 1,900 MHz in arm A, 1,700 MHz in arm B"),
        ({"b": ArmConditions(1_900.0, ThrottleReason.SW_THERMAL)}, "throttled in arm B only"),
        ({"retries": 2}, "2 allocations"),
        ({"recorded_steps": 3}, "3 steps ran under a profiler"),
        ({"missing_steps": 7}, "7 rows are missing"),
        ({"other_processes": ["blender"]}, "Another process used the device: blender"),
        ({"other_cores": 1.4}, "1.4 of the machine's cores"),
    ],
)
def test_a_reason_for_doubt_is_one_sentence(changed: dict[str, object], reason: str) -> None:
    (sentence,) = doubts(Conditions(**{**UNSUSPICIOUS._asdict(), **changed}))
    assert reason in sentence
