"""Settings and their changes in words."""

from harness.analysis.advice.suggestion import Gain, Suggestion
from harness.cli.advising import command
from harness.settings import labels
from harness.settings.spec import text_of_value


def test_one_of_a_unit_is_in_the_singular() -> None:
    before = {"prefetch_factor": 3, "empty_cache_every": 7, "batch_size": 2}
    assert labels.sentence(before, {"prefetch_factor": 1}).startswith("Prefetch 3 batches → 1 batch")
    assert "7 steps → 1 step" in labels.sentence(before, {"empty_cache_every": 1})
    assert labels.sentence(before, {"batch_size": 1}).startswith("Batch size 2 → 1")


def test_an_earlier_value_that_a_log_lacks_is_left_out() -> None:
    assert labels.sentence_on_values({}, {"batch_size": 64}) == "Batch size → 64."


def test_a_number_that_identifies_something_has_no_separators() -> None:
    assert text_of_value("seed", 20_261_129) == "20261129"
    assert labels.sentence({"seed": 1_000}, {"seed": 20_261_129}).startswith("Seed 1000 → 20261129")


def test_whole_numbers_have_separators_of_thousands_except_in_a_command() -> None:
    assert text_of_value("noise_steps", 20_000) == "20,000"
    assert text_of_value("batch_size", 4_096) == "4,096"
    assert labels.sentence({"noise_steps": 3}, {"noise_steps": 20_000}) == "noise_steps 3 → 20,000."
    assert [text_of_value("own", value) for value in (True, None, 0.5, "a")] == ["on", "none", "0.5", "a"]
    advice = Suggestion("", "", Gain(None, ""), "", (), 1, 1, "", {"batch_size": 4_096}, "")
    assert command(advice, "latest", is_live=True) == "stepscope set latest batch_size=4096"
