"""Sentences on the live changes that the error which ends a run follows."""

from typing import Any

import pytest

from harness.analysis.recent_change import CHANGE_WITHIN
from harness.watch.recent_changes import AppliedChange, RecentChanges

MISMATCH = "RuntimeError: Expected hidden size (1, 32, 64), got [1, 16, 64]"
OTHER = "ValueError: no such column"


def a_change(step: int, name: str, before: Any, after: Any, **fields: Any) -> AppliedChange:
    command_id = fields.pop("command_id", f"c{step}")
    text = fields.pop("text", f"{name} {before} → {after}.")
    return AppliedChange(step, {name: before}, {name: after}, text, command_id, **fields)


def of_a_script(*changes: AppliedChange) -> RecentChanges:
    recent = RecentChanges()
    recent.names_flags = False
    for change in changes:
        recent.add(change)
    return recent


BATCH = a_change(41, "batch_size", 16, 32, text="Batch size 16 → 32.")


def test_an_error_that_names_both_sizes_comes_likely_from_the_change() -> None:
    assert of_a_script(BATCH).sentences(MISMATCH, 40) == (
        "It failed in the first step after a live change: Batch size 16 → 32, before step 41. The error "
        "names both batch sizes: the change is the likely cause. When it is run again, the script begins "
        "with its own values (batch 16)."
    )


def test_small_numbers_are_no_sizes() -> None:
    recent = of_a_script(a_change(41, "batch_size", 2, 1))
    text = recent.sentences("Dimension out of range (expected to be in range of [-2, 1], but got 2)", 41)
    assert "The change may be the cause." in text


def test_of_another_error_only_its_distance_is_stated() -> None:
    assert of_a_script(BATCH).sentences(OTHER, 43) == (
        "It failed 3 steps after a live change: Batch size 16 → 32, before step 41. The change may be the "
        "cause. When it is run again, the script begins with its own values (batch 16)."
    )


def test_a_run_with_flags_begins_with_the_value_before_by_its_flag() -> None:
    recent = RecentChanges()
    recent.add(BATCH)
    recent.add(a_change(42, "channels_last", False, True))
    recent.add(a_change(43, "memory_cap_gib", None, 2.0))
    assert recent.sentences(OTHER, 45).endswith(
        "One of them may be the cause. `stepscope run … --batch-size 16 --no-channels-last "
        "--memory-cap-gib none` begins with the values before."
    )


@pytest.mark.parametrize(
    ("error", "clue"),
    [
        ("shape '[16, 3, 4]' is invalid for input of size 288", "The error names 16, the earlier batch size"),
        (
            "Expected input batch_size (1120) to match target batch_size (560)",
            "The error names 560 and 1,120, 35 times both batch sizes",
        ),
        ("StopIteration: StopIteration", "With larger batches, a pass over the loader has fewer"),
        ("input_lengths must be of size batch_size", "The error is about a batch size"),
        ("mat1 and mat2 cannot be multiplied (32x8 and 9x2)", None),
        ("expected float16 in conv16, see line 16, after 16.5 s", None),
        ("Tried to step 801 times. The specified number of total steps is 800", None),
    ],
)
def test_only_whole_numbers_of_the_text_are_sizes(error: str, clue: str | None) -> None:
    text = of_a_script(BATCH).sentences(error, 41)
    expected = "The change may be the cause." if clue is None else f"{clue}: the change is the likely cause."
    assert expected in text


@pytest.mark.parametrize(
    ("mode", "error"),
    [("bf16", "\"svd\" not implemented for 'BFloat16'"), ("fp16", "expected Float but found Half")],
)
def test_an_error_that_names_the_data_type_of_a_mode_comes_likely_from_it(mode: str, error: str) -> None:
    recent = of_a_script(a_change(41, "amp", "off", mode))
    assert "the data type of that mode: the change is the likely cause." in recent.sentences(error, 45)
    assert "The change may be the cause." in recent.sentences(OTHER, 45)


def test_a_change_long_before_is_not_named() -> None:
    recent = of_a_script(BATCH)
    assert recent.sentences(MISMATCH, 40 + CHANGE_WITHIN)
    assert not recent.sentences(MISMATCH, 41 + CHANGE_WITHIN)


def test_a_batch_size_is_named_up_to_the_smaller_batch_at_the_end_of_a_pass() -> None:
    recent = of_a_script(BATCH._replace(shows_within=200))
    assert "It failed 200 steps after" in recent.sentences(OTHER, 240)
    assert not recent.sentences(OTHER, 241)


def test_a_schedule_that_smaller_batches_exceed_is_named_however_late() -> None:
    error = "ValueError: Tried to step 801 times. The specified number of total steps is 800"
    recent = of_a_script(a_change(120, "batch_size", 16, 8))
    assert (
        "It failed 682 steps after a live change: batch_size 16 → 8, before step 120. With smaller batches, "
        "an epoch has more steps than the script's schedule: the change is the likely cause."
    ) in recent.sentences(error, 801)
    assert not of_a_script(BATCH).sentences(error, 801)  # Larger batches make fewer steps.


def test_a_loss_that_is_not_finite_since_the_change_leads_back_to_it() -> None:
    recent = of_a_script(a_change(338, "learning_rate_factor", 1.0, 1000.0))
    assert not recent.sentences("AssertionError: NaN", 500)
    assert recent.sentences("AssertionError: NaN", 500, 341) == (
        "It failed 163 steps after a live change: learning_rate_factor 1.0 → 1000.0, before step 338. The "
        "loss has not been finite since step 341. The change may be the cause. When it is run again, the "
        "script begins with its own values (lr factor 1)."
    )
    assert not recent.sentences("AssertionError: NaN", 500, 337)


def test_of_several_changes_the_last_is_counted_from_and_three_are_named() -> None:
    changes = [a_change(step, "batch_size", step, step + 1) for step in (10, 11, 12, 13)]
    assert of_a_script(*changes).sentences(OTHER, 14) == (
        "It failed 2 steps after the last of 4 live changes: batch_size 11 → 12, before step 11; batch_size "
        "12 → 13, before step 12; batch_size 13 → 14, before step 13. One of them may be the cause. When it "
        "is run again, the script begins with its own values (batch 10)."
    )


def test_a_value_that_was_no_longer_the_scripts_own_is_set_in_the_new_run() -> None:
    recent = of_a_script(a_change(10, "batch_size", 16, 24), a_change(500, "batch_size", 24, 32))
    assert recent.sentences(OTHER, 500).endswith(
        "When it is run again, the script begins with its own values (batch 16); `stepscope set latest "
        "batch_size=24` sets the value before."
    )


def test_a_number_is_set_in_the_new_run_with_all_its_digits() -> None:
    recent = of_a_script(
        a_change(10, "scale", 1.0, 0.12345678),
        a_change(500, "scale", 0.12345678, 2.0),
        a_change(501, "n", 1, 2),
    )
    assert "`stepscope set latest scale=0.12345678` sets" in recent.sentences(OTHER, 501)


def test_a_setting_that_the_script_declares_is_named_like_another() -> None:
    recent = of_a_script(a_change(3, "mode", "fast", "very fast"), a_change(90, "mode", "very fast", "exact"))
    assert recent.sentences(OTHER, 90).endswith(
        "begins with its own values (mode fast); `stepscope set latest mode='very fast'` sets the value "
        "before."
    )


def test_values_that_were_restored_need_no_way_back() -> None:
    undone = a_change(42, "amp", "bf16", "off", command_id=None, text="The model failed: AMP bf16 → off.")
    text = of_a_script(a_change(41, "amp", "off", "bf16"), undone).sentences(OTHER, 42)
    assert text == (
        "It failed 1 step after the last of 2 live changes: amp off → bf16, before step 41; The model "
        "failed: AMP bf16 → off, before step 42. One of them may be the cause."
    )


def test_what_the_script_changes_by_itself_is_no_live_change() -> None:
    recent = of_a_script(a_change(4, "amp", "off", "bf16", command_id=None))
    assert not recent
    assert not recent.sentences(OTHER, 4)


def test_another_number_of_steps_breaks_nothing() -> None:
    assert not of_a_script(a_change(4, "max_steps", None, 100)).sentences(OTHER, 4)


def test_a_change_that_waits_for_the_next_epoch_counts_from_there() -> None:
    recent = of_a_script(BATCH._replace(is_waiting=True))
    text = recent.sentences(OTHER, 44)
    assert "Batch size 16 → 32, requested before step 41 and not in effect yet." in text
    recent.took_effect(301)
    assert recent.sentences(OTHER, 300).startswith(
        "It failed in the first step after a live change: Batch size 16 → 32, before step 301."
    )


def test_the_arms_of_a_measurement_are_one_change() -> None:
    trial = a_change(10, "amp", "off", "bf16", command_id="m1", text="AMP off → bf16 for a measurement")
    recent = of_a_script(trial)
    recent.undone("m1")
    recent.add(trial._replace(step=30))
    assert recent.sentences(OTHER, 31) == (
        "It failed 2 steps after a live change: AMP off → bf16 for a measurement, before step 30. The change "
        "may be the cause. When it is run again, the script begins with its own values (AMP off)."
    )
    recent.undone("m1")
    assert recent.sentences(OTHER, 31).endswith("The change may be the cause.")
