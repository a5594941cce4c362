"""Half characters in the texts of a script, as `os.fsdecode` and `json.loads` return them: no log can hold
them."""

from pathlib import Path

import pytest

from harness.records.run import EventKind, RunState
from tests.api_factories import SmallTraining, events, log_of, watch


def test_an_event_with_a_half_character_is_recorded(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        training.train(run.steps(training.loader))
        run.event("saved model-\udce9.pt 😀")
    (event,) = events(tmp_path, EventKind.NOTE)
    assert event.message == r"saved model-\udce9.pt 😀"


def test_an_error_with_a_half_character_is_the_outcome(tmp_path: Path) -> None:
    training = SmallTraining()
    with pytest.raises(ValueError, match="no such word"), watch(training, tmp_path):
        raise ValueError("no such word: \ud83d")
    with log_of(tmp_path) as log:
        run = log.run()
    assert (run.state, run.state_message) == (RunState.FAILED, r"ValueError: no such word: \ud83d")
