"""Numbers as text: units, rounding at the unit's edge, and what is missing or not finite."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1.21 * 2**30, "1.21 GiB"),
        (812 * 2**20, "812 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (-3 * 2**20, "−3.00 MiB"),
        (12.34 * 2**30, "12.3 GiB"),
        (math.nan, "NaN"),
    ],
)
def test_sizes_read_in_binary_units_with_three_digits(value: float | None, text: str) -> None:
    assert words.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 ns"),
        (850, "850 ns"),
        (8_100, "8.1 µs"),
        (44_500_000, "44.5 ms"),
        (260_000, "260 µs"),
        (999_999_999, "1.0 s"),
        (2_300_000_000, "2.3 s"),
        (3_840_000_000_000, "1 h 04 min"),
    ],
)
def test_durations_read_in_the_unit_that_fits(value: float | None, text: str) -> None:
    assert words.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (42.9, "42 s"), (185, "3 min 05 s"), (3_840, "1 h 04 min"), (183_600, "2 d 03 h")],
)
def test_spans_use_two_units_at_most(value: float | None, text: str) -> None:
    assert words.span(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (-5, "just now"),
        (12, "12 s ago"),
        (200, "3 min ago"),
        (7_300, "2 h ago"),
        (500_000, "5 d ago"),
    ],
)
def test_ago_never_counts_into_the_future(value: float | None, text: str) -> None:
    assert words.ago(value) == text


def test_missing_is_never_zero() -> None:
    texts = {
        words.size(None),
        words.duration(None),
        words.milliseconds(None),
        words.span(None),
        words.ago(None),
        words.count(None),
        words.figure(None),
        words.rate(None),
        words.percent(None),
        words.moment(None),
    }
    assert texts == {"n/a"}


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *[(0.051, "+5.1 %"), (-0.12, "−12 %"), (0.0001, "0 %"), (999, "+99,900 %"), (5.1e10, "> +100,000 %")],
        *[(-0.99, "−99 %"), (-0.995, "−99.5 %"), (-0.9996, "< −99.9 %"), (-1.0, "−100 %"), (-1.2, "−120 %")],
    ],
)
def test_a_relative_change_has_no_more_digits_than_it_means(share: float, text: str) -> None:
    assert words.relative(share) == text


def test_counts_figures_rates_and_percentages() -> None:
    assert words.count(20_413) == "20,413"
    assert words.plural(1, "step") == "1 step"
    assert words.plural(1_204, "step") == "1,204 steps"


def test_successive_steps_are_a_range_unless_it_is_one() -> None:
    assert words.step_range(7, 1_204) == "steps 7 to 1,204"
    assert words.step_range(7, 7) == "step 7"
    assert words.figure(2.30258) == "2.303"
    assert [words.figure(value, 2) for value in (99.4, 99.6, -262.3, 1.5e7)] == [
        "99",
        "100",
        "−262",
        "1.5e+07",
    ]
    assert words.figure(12_345.6) == "12,346"
    assert words.figure(math.nan) == "NaN"
    assert words.figure(-math.inf) == "−∞"
    assert words.rate(1_204.4) == "1,204 samples/s"
    assert words.rate(3.14, "tokens") == "3.1 tokens/s"
    assert words.rate(0.0) == "0.0 samples/s"
    assert words.percent(87.4) == "87 %"
    assert words.percent(2.5) == "2.5 %"
    assert words.percent(1_250) == "1,250 %"
    assert [words.percent(value) for value in (0, 0.0001, 0.0499, 0.05)] == [
        "0 %",
        "< 0.1 %",
        "< 0.1 %",
        "0.1 %",
    ]
    assert words.milliseconds(260_000) == "0.260 ms"
    assert words.milliseconds(44_500_000) == "44.5 ms"


@pytest.mark.parametrize(
    ("value_per_s", "text"),
    [
        (1 / 6, "0.167 samples/s"),
        (1 / 60, "0.0167 samples/s"),
        (0.95, "0.950 samples/s"),
        (1.0, "1.0 samples/s"),
    ],
)
def test_slow_steps_have_a_throughput_above_zero(value_per_s: float, text: str) -> None:
    assert words.rate(value_per_s) == text


@example(math.inf)
@example(-math.inf)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_number_has_a_text(value: float) -> None:
    for write in (words.size, words.duration, words.milliseconds, words.span, words.count, words.figure):
        assert write(value)
    assert words.ago(value)
    assert words.rate(value)
    assert words.percent(value)


@pytest.mark.parametrize(
    ("value_j", "text"),
    [
        (None, "n/a"),
        (0.0, "0.00 J"),
        (12.34, "12.3 J"),
        (999.4, "999 J"),
        (999.6, "1.00 kJ"),
        (3.45e7, "34.5 MJ"),
    ],
)
def test_energy_is_told_to_three_digits(value_j: float | None, text: str) -> None:
    assert words.energy(value_j) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0.00 FLOP/s"),
        (999.4, "999 FLOP/s"),
        (44.12e6, "44.1 MFLOP/s"),
        (999.6e9, "1.00 TFLOP/s"),
        (989.5e12, "990 TFLOP/s"),
        (2.5e15, "2.50 PFLOP/s"),
        (float("nan"), "NaN"),
    ],
)
def test_operations_a_second_read_with_three_digits(value: float | None, text: str) -> None:
    assert words.flops(value) == text


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert words.clip_middle("0123456789", 4, 3) == "0123456789"
    assert words.clip_middle("0123456789a", 4, 3) == "0123 … 89a"
