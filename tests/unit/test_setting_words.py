"""Settings and their changes in words."""

from harness.settings import labels


def test_one_of_a_unit_is_in_the_singular() -> None:
    before = {"prefetch_factor": 3, "empty_cache_every": 7, "batch_size": 2}
    assert labels.sentence(before, {"prefetch_factor": 1}).startswith("Prefetch 3 batches → 1 batch")
    assert "7 steps → 1 step" in labels.sentence(before, {"empty_cache_every": 1})
    assert labels.sentence(before, {"batch_size": 1}).startswith("Batch size 2 → 1")


def test_an_earlier_value_that_a_log_lacks_is_left_out() -> None:
    assert labels.sentence_on_values({}, {"batch_size": 64}) == "Batch size → 64."
