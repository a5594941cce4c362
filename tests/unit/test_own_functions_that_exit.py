"""A person's own functions that call `sys.exit`, as main programs do."""

from pathlib import Path

import pytest

from harness.data.source import shape_of
from harness.errors import SettingError
from harness.models.building import build_model
from harness.predict.answer import Impossible, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

DATA = f"{Path(__file__).parents[1]}/scripts/own_data.py:dataset"


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "exits.py"
    path.write_text("import sys\n\n\ndef function(settings):\n    sys.exit('no weights')\n")
    return path


def test_the_exit_of_a_function_of_a_model_is_one_sentence(own_file: Path) -> None:
    settings = resolve({"model": f"{own_file}:function", "data": DATA, "device": "cpu"})
    sentence = "exits.py:function exits with 'no weights'; let it return, or raise an error with the reason."
    with pytest.raises(SettingError) as raised:
        build_model(settings, shape_of(settings))
    assert (raised.value.setting, str(raised.value)) == ("model", sentence)
    assert predict(Question.of(settings, Target(DeviceKind.CPU, "the CPU")), None) == Impossible(sentence)


def test_the_exit_of_a_function_of_a_dataset_is_one_sentence(own_file: Path) -> None:
    settings = resolve({"model": f"{own_file}:function", "data": f"{own_file}:function", "device": "cpu"})
    with pytest.raises(SettingError, match="function exits with 'no weights'; ") as raised:
        shape_of(settings)
    assert raised.value.setting == "data"
