"""A run in what the script copies or stores."""

import copy
import pickle
from pathlib import Path

from tests.api_factories import SmallTraining, log_of, scalar, watch


def test_a_copy_of_a_model_has_the_same_run(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        training.model.__dict__["run"] = run
        assert copy.deepcopy(training.model).__dict__["run"] is run


def test_a_stored_run_does_nothing(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        training.model.__dict__["run"] = run
        stored = pickle.loads(pickle.dumps(training.model)).__dict__["run"]
        stored.log(loss=0.5)
        stored.close()
        training.train(stored.steps(training.loader))
        assert (stored.name, stored.is_stopped) == ("", False)
    assert scalar(tmp_path, "loss") == []
    with log_of(tmp_path) as log:
        assert log.run().state_message == "The script ended after 8 steps."
