"""Other batch sizes in a report: a line through the peaks of a run."""

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.fit import fit
from harness.analysis.oom.report import Counterfactual, OomPhase, RecentChange, RecentStep
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB, some_facts, some_peaks


def test_peaks_at_two_batch_sizes_make_a_line() -> None:
    line = fit(some_peaks((8, 12.0), (16, 20.0)), None)
    assert line is not None
    assert line.sample_bytes == GIB
    assert line.fixed_bytes == 4 * GIB
    assert line.peak_bytes(32) == 36 * GIB
    assert line.largest_batch(30 * GIB) == 26
    assert line.largest_batch(80 * GIB) == 32


def test_one_batch_size_makes_a_line_only_with_what_is_held_from_step_to_step() -> None:
    peaks = some_peaks((8, 12.0))
    assert fit(peaks, None) is None
    line = fit(peaks, 4 * GIB)
    assert line is not None
    assert (line.sample_bytes, line.fixed_bytes) == (GIB, 4 * GIB)
    assert "of which 4.00 GiB are the baseline between two steps: 1.00 GiB per sample" in line.basis


def test_peaks_that_do_not_grow_make_none() -> None:
    assert fit(some_peaks((8, 12.0), (16, 12.0)), None) is None


def test_other_batches_are_told_with_what_the_claim_rests_on() -> None:
    message = explain(some_facts(peaks=some_peaks((16, 20.0), (32, 36.0)))).counterfactuals
    assert message[0] == Counterfactual(
        "Batch 32 peaked at 36.0 GiB.", "measured in this run, 40 steps", 36 * GIB
    )
    assert all("batches 16 (20.0 GiB), 32 (36.0 GiB)" in c.basis for c in message[1:])
    halved = explain(some_facts(peaks=some_peaks((8, 12.0), (48, 52.0)))).counterfactuals
    assert "Batch 32 would have peaked at about 36.0 GiB." in [c.text for c in halved]


def test_beyond_the_largest_batch_seen_a_line_is_a_lower_bound() -> None:
    message = explain(some_facts(batch_size=100, peaks=some_peaks((8, 12.0), (40, 44.0)))).counterfactuals
    assert [c.text for c in message][1:] == [
        "Batch 50 would have peaked at at least 54.0 GiB.",
        "Any batch above 76 would have peaked at more than 80.0 GiB.",
    ]


def test_a_lower_bound_names_no_batch_as_the_largest_where_it_ends_below_the_limit() -> None:
    message = explain(some_facts(batch_size=100, peaks=some_peaks((8, 12.0), (20, 24.0)))).counterfactuals
    assert [c.text for c in message][1:] == ["Batch 40 would have peaked at at least 44.0 GiB."]


@pytest.mark.parametrize("phase", [OomPhase.DATA, OomPhase.WORKER, OomPhase.BETWEEN])
def test_requests_outside_of_the_model_say_nothing_about_other_batches(phase: OomPhase) -> None:
    facts = some_facts(phase=phase, peaks=some_peaks((8, 12.0), (48, 52.0)))
    assert not any("would have peaked" in c.text for c in explain(facts).counterfactuals)


def test_a_request_above_the_line_says_nothing_about_other_batches() -> None:
    small = some_peaks((8, 0.1), (48, 0.3))
    for size, estimates in ((512 * MIB, 0), (128 * MIB, 1)):
        facts = some_facts(least_bytes=size, peaks=small)
        texts = [c.text for c in explain(facts).counterfactuals]
        assert sum("would have peaked" in text for text in texts) == estimates


@pytest.mark.parametrize(("left_mib", "estimates"), [(600, 0), (40, 1)])
def test_temporaries_above_the_line_say_nothing_about_other_batches(left_mib: int, estimates: int) -> None:
    """A hook of the model keeps tensors in a list, which its error frees."""
    facts = some_facts(
        DeviceKind.CPU,
        least_bytes=16 * MIB,
        most_bytes=16 * MIB,
        cap_bytes=GIB,
        cap_left_bytes=left_mib * MIB,
        device_free_bytes=16 * GIB,
        peaks=some_peaks((8, 0.08), (64, 0.1)),
    )
    texts = [c.text for c in explain(facts).counterfactuals]
    assert sum("would have peaked" in text for text in texts) == estimates


def growing_steps(first: int, count: int, mib_per_step: int) -> tuple[RecentStep, ...]:
    """Steps after which so much more is allocated each time, from 4 GiB on."""
    return tuple(
        RecentStep(first + index, 10**6, 4 * GIB + index * mib_per_step * MIB, None, None)
        for index in range(count)
    )


def other_batches(steps: tuple[RecentStep, ...], change: RecentChange | None = None) -> list[str]:
    facts = some_facts(peaks=some_peaks((64, 12.0)), static_bytes=4 * GIB, steps=steps, change=change)
    return [one.text for one in explain(facts).counterfactuals]


def test_of_peaks_that_grow_from_step_to_step_nothing_follows_for_other_batches() -> None:
    assert other_batches(growing_steps(70, 50, 200)) == [
        "What other batches would have needed is not known: allocated memory between two steps had grown by "
        "at least 4.88 GiB in 50 steps."
    ]


@pytest.mark.parametrize("steps", [growing_steps(70, 50, 10), growing_steps(117, 3, 2000), ()])
def test_a_growth_that_is_small_or_not_known_leaves_the_line(steps: tuple[RecentStep, ...]) -> None:
    assert other_batches(steps) == ["Batch 32 would have peaked at about 8.00 GiB."]


def test_a_line_through_peaks_that_were_sampled_is_a_lower_bound() -> None:
    facts = some_facts(DeviceKind.CPU, peaks=some_peaks((64, 12.0)), static_bytes=4 * GIB)
    texts = [one.text for one in explain(facts).counterfactuals]
    assert "Batch 32 would have peaked at about 8.00 GiB or more." in texts


def test_a_growth_with_a_change_of_settings_is_none_of_the_steps() -> None:
    later = [one._replace(allocated_bytes=8 * GIB) for one in growing_steps(95, 25, 0)]
    steps = (*growing_steps(70, 25, 0), *later)
    assert "Batch 32 would" not in other_batches(steps)[0]
    change = RecentChange(95, 25, "Batch size 32 → 64.", None)
    assert other_batches(steps, change) == ["Batch 32 would have peaked at about 8.00 GiB."]
