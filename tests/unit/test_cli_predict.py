"""`stepscope predict`: what it prints, and with which exit code. The child process is real."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.predict.answer import Advice, Answer, Impossible, Prediction, Remedy, Target, from_json
from harness.settings import Settings
from tests.unit.test_prediction import a_prediction

MIB = 2**20


class Canned:
    """Stands in for the predictor where only the shell is of interest."""

    answer: Answer = a_prediction(600 * MIB)

    def __init__(self, _home: Path) -> None:
        self.targets: list[Target] = []

    def __enter__(self) -> "Canned":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def wait(self, settings: Settings, target: Target) -> Answer:
        return self.answer

    def wait_for_advice(self, settings: Settings, target: Target) -> Advice:
        remedies = (Remedy("mixed precision (bf16)", {"amp": "bf16"}, 400 * MIB, 200 * MIB, True),)
        return Advice(GIB, "the cap", True, 12, remedies)


GIB = 2**30


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> type[Canned]:
    monkeypatch.setattr("harness.cli.predicting.Predictor", Canned)
    monkeypatch.setattr(Canned, "answer", a_prediction(600 * MIB))
    return Canned


def predict(*words: str) -> int:
    return main(["predict", *words], os.environ)


@pytest.mark.usefixtures("canned")
def test_what_fits_ends_with_0_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict("mlp", "--device", "cpu", "--memory-cap-gib", "1", "--modules") == 0
    out = capsys.readouterr().out
    assert "Predicted peak: 600 MiB allocated, in backward" in out
    assert "It fits" in out
    assert "Largest batch size that fits: 12." in out
    assert "mixed precision (bf16)" in out
    assert "head" in out
    assert "· Two." in out


@pytest.mark.usefixtures("canned")
def test_what_does_not_fit_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict("mlp", "--device", "cpu", "--memory-cap-gib", "0.5", "--brief") == 3
    out = capsys.readouterr().out
    assert "It does not fit" in out
    assert "Largest batch" not in out


@pytest.mark.usefixtures("canned")
def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict("mlp", "--device", "cpu", "--memory-cap-gib", "1", "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["fits"] is True
    assert document["advice"]["remedies"][0]["changes"] == {"amp": "bf16"}
    assert from_json(Prediction, json.dumps(document["prediction"])) == a_prediction(600 * MIB)
    assert document["target"]["kind"] == "cpu"


def test_what_cannot_be_predicted_ends_with_1(
    canned: type[Canned], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canned, "answer", Impossible("Its shapes depend on values."))
    assert predict("mlp", "--device", "cpu") == 1
    assert capsys.readouterr().err == "stepscope: Its shapes depend on values.\n"


@pytest.mark.usefixtures("canned")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("mlp --device nonsense", "device cannot be 'nonsense'"),
        ("mlp --device cpu --amp fp16", "amp cannot be 'fp16'"),
        ("nope", "no model 'nope'"),
    ],
)
def test_invalid_requests_end_with_2(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(*words.split()) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.usefixtures("canned")
def test_a_gpu_that_is_not_present_is_predicted_for_and_needs_a_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert predict("mlp", "--device", "cuda:99", "--brief") == 0
    assert "memory_cap_gib" in capsys.readouterr().out


@pytest.mark.long
def test_a_real_prediction_is_made_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict("mlp", "--device", "cpu", "--brief", "--home", str(tmp_path)) == 0
    first = capsys.readouterr().out
    assert len(list((tmp_path / "predictions").iterdir())) == 1
    assert predict("mlp", "--device", "cpu", "--brief", "--home", str(tmp_path)) == 0
    assert capsys.readouterr().out == first
