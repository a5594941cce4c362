"""Sentences on files of a person's own that define no model."""

from pathlib import Path

import pytest

from harness.catalog.own import absolute_key
from harness.data.source import shape_of
from harness.errors import SettingError
from harness.models.building import build_model
from harness.settings.resolve import resolve


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "from .layers import build",
            "ImportError: .*: import its neighbors by their names, without the dot",
        ),
        (
            "from torch import nn\ndef build(settings): return nn.Linear(2, 1), nn.MSELoss",
            r"network.py:build returned the class MSELoss as the loss function; return an instance of it",
        ),
        (
            "from torch import nn\ndef build(settings): return nn.Linear, nn.MSELoss()",
            r"network.py:build returned \(the class Linear, MSELoss\); it has to return",
        ),
    ],
)
def test_what_is_no_model_is_refused_in_one_sentence(tmp_path: Path, code: str, sentence: str) -> None:
    (tmp_path / "network.py").write_text(code)
    settings = resolve({"model": f"{tmp_path}/network.py:build", "data": "digits", "device": "cpu"})
    with pytest.raises(SettingError, match=sentence):
        build_model(settings, shape_of(settings))


@pytest.mark.parametrize(("name", "place"), [("gone.py", True), ("/nowhere/gone.py", False)])
def test_the_folder_is_named_where_a_missing_file_is_relative_to_it(name: str, place: bool) -> None:
    with pytest.raises(SettingError) as raised:
        absolute_key("model", f"{name}:build")
    assert (f" in {Path.cwd()}" in str(raised.value)) == place
