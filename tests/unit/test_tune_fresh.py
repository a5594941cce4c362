"""Pairs of runs in fresh processes give figures with Student's t interval."""

import pytest

from harness.analysis.effect.measured import THROUGHPUT, Word
from harness.tune.fresh import FreshFigures, fresh_figures
from harness.tune.rows import PEAK_ALLOCATED

NOISE = (1.0, 1.004, 0.997, 1.002)


def runs(sample_ns: float, peak_bytes: int | None = 100) -> list[FreshFigures]:
    return [FreshFigures(sample_ns * share, 32 * sample_ns * share, peak_bytes, None) for share in NOISE]


def test_faster_runs_are_faster_per_sample_and_in_samples_per_second() -> None:
    time, rate, peak = fresh_figures(runs(1000.0), runs(800.0, 50)[::-1])
    assert (time.word, rate.word, peak.word) == (Word.FASTER, Word.FASTER, Word.LESS)
    assert time.effect == pytest.approx(-0.2, abs=0.005)
    assert time.low is not None
    assert time.high is not None
    assert time.low < -0.2 < time.high
    assert (rate.name, peak.name) == (THROUGHPUT.name, PEAK_ALLOCATED)


def test_the_same_runs_differ_by_nothing() -> None:
    assert fresh_figures(runs(1000.0), runs(1000.0))[0].word is Word.NO_PRACTICAL_DIFFERENCE


def test_a_difference_within_the_noise_is_inconclusive() -> None:
    noisy = [FreshFigures(1000.0 * share, 1.0, None, None) for share in (0.8, 1.3, 0.9, 1.2)]
    assert fresh_figures(runs(1000.0), noisy)[0].word is Word.INCONCLUSIVE


def test_a_peak_that_was_not_measured_in_each_run_is_left_out() -> None:
    names = [figure.name for figure in fresh_figures(runs(1000.0), runs(1000.0, None))]
    assert PEAK_ALLOCATED not in names
