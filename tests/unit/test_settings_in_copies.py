"""A script's own setting in what the script copies, stores or sends to another process."""

import copy
import pickle
from pathlib import Path

import stepscope
from tests.api_factories import SmallTraining, watch


def test_a_copy_of_a_model_has_the_same_setting(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        rate = run.setting("rate", 0.1, bounds=(0, 1))
        training.model.__dict__["rate"] = rate
        assert copy.deepcopy(training.model).__dict__["rate"] is rate
        assert pickle.loads(pickle.dumps(training.model)).__dict__["rate"]() == 0.1


def test_a_stored_setting_has_the_value_that_was_in_effect() -> None:
    value = 0.1
    rate = stepscope.Setting("rate", lambda: value)
    stored, value = pickle.dumps(rate), 0.5
    loaded: stepscope.Setting[float] = pickle.loads(stored)
    assert (loaded.name, loaded(), rate()) == ("rate", 0.1, 0.5)
    assert pickle.loads(pickle.dumps(loaded))() == 0.1
