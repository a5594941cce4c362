"""The catalog: what it holds, and how a selection becomes settings or a sentence that says no."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import catalog
from harness.catalog import DATA, MODELS, data, model, packages
from harness.catalog.first_run import default_model
from harness.errors import SettingError
from harness.records.data import DataKind
from harness.settings import Settings
from harness.settings.resolve import check_fit, resolve

PRESETS = ("laptop", "workstation", "h200")


def refusal(**values: object) -> SettingError:
    with pytest.raises(SettingError) as caught:
        check_fit(resolve(values))
    return caught.value


def test_the_catalog_is_what_the_manual_promises() -> None:
    assert set(MODELS) == {
        "mlp", "cnn", "resnet", "rnn", "lstm", "gru", "transformer", "seq2seq",
        "hf-gpt2", "hf-bert", "hf-llama", "hf-vit", "hf-resnet",
    }  # fmt: skip
    assert set(DATA) == {"digits", "shapes", "images", "stdlib-text", "text", "synthetic"}


@pytest.mark.parametrize("key", MODELS)
def test_every_model_has_three_presets_that_grow(key: str) -> None:
    presets = MODELS[key].presets
    assert tuple(preset.name for preset in presets) == PRESETS
    sizes = [preset.parameters or 0 for preset in presets]
    assert sizes == sorted(set(sizes))
    assert all(preset.scale.endswith(".") for preset in presets)


@pytest.mark.parametrize("key", MODELS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits_its_own_model(key: str, preset: str) -> None:
    settings = resolve({"model": key, "preset": preset})
    check_fit(settings)
    check_fit(resolve({"model": key, "preset": preset, "data": "synthetic"}))


@pytest.mark.parametrize("key", MODELS)
def test_the_default_data_is_real_and_of_the_models_kind(key: str) -> None:
    assert data(MODELS[key].default_data).kind is MODELS[key].accepts


@pytest.mark.parametrize("key", [*MODELS, *DATA])
def test_builders_and_openers_exist(key: str) -> None:
    target = MODELS[key].builder if key in MODELS else DATA[key].opener
    assert callable(catalog.load(target))


def test_the_catalog_and_its_checks_need_no_torch() -> None:
    checks = "s.check_fit(s.resolve({})); assert 'torch' not in sys.modules"
    code = f"import sys, harness.settings.resolve as s; {checks}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_model_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="There is no model 'transfomer'; did you mean 'transformer'"):
        model("transfomer")


def test_an_unknown_data_source_is_answered_with_all_names() -> None:
    with pytest.raises(SettingError, match="There is no data source 'x'; choose one of: digits, shapes"):
        data("x")


def test_an_unknown_preset_is_answered_with_all_names() -> None:
    assert "choose one of: laptop, workstation, h200" in str(refusal(model="mlp", preset="phone"))


def test_an_unknown_setting_is_refused_by_name() -> None:
    assert refusal(bach_size=3).setting == "bach_size"


def test_nothing_asked_for_is_the_laptop_preset_of_the_default_model() -> None:
    settings = resolve({})
    assert settings.model == Settings().model
    assert settings.sequence_length == model(settings.model).preset("laptop").settings["sequence_length"]


def test_what_is_asked_for_wins_over_the_preset() -> None:
    settings = resolve({"model": "lstm", "batch-size": 7})
    assert settings.batch_size == 7
    assert settings.sequence_length == model("lstm").preset("laptop").settings["sequence_length"]
    assert settings.data == "stdlib-text"


def test_text_is_no_food_for_an_image_model() -> None:
    error = refusal(model="cnn", data="stdlib-text")
    assert error.setting == "data"
    assert str(error) == (
        "cnn trains on images, and 'stdlib-text' yields text; try data='digits' or 'synthetic'."
    )


def test_images_are_no_food_for_a_text_model() -> None:
    assert "gru trains on text, and 'digits' yields images" in str(refusal(model="gru", data="digits"))


def test_own_data_needs_a_path() -> None:
    assert refusal(model="cnn", data="images").setting == "data_path"


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    error = refusal(model="lstm", data="text", data_path=missing)
    assert error.setting == "data_path"
    assert missing in str(error)


def test_an_image_too_small_for_the_strides_is_refused() -> None:
    error = refusal(model="resnet", preset="h200", image_size=32)
    assert error.setting == "image_size"
    assert "use at least 64" in str(error)


def test_an_image_that_cannot_be_cut_into_patches_is_refused() -> None:
    error = refusal(model="hf-vit", preset="h200", image_size=100)
    assert "16 px patches" in str(error)
    assert "such as 96" in str(error)


def test_an_odd_text_cannot_be_split_in_halves() -> None:
    error = refusal(model="seq2seq", sequence_length=33)
    assert error.setting == "sequence_length"
    assert "such as 34" in str(error)


def test_a_text_longer_than_the_positions_is_refused() -> None:
    assert "256 positions" in str(refusal(model="transformer", sequence_length=257))
    check_fit(resolve({"model": "lstm", "sequence_length": 4096}))


def test_channels_last_needs_convolutions() -> None:
    assert refusal(model="mlp", channels_last=True).setting == "channels_last"
    check_fit(resolve({"model": "cnn", "channels_last": True}))


def test_checkpointing_needs_a_model_that_can() -> None:
    assert refusal(model="hf-resnet", activation_checkpointing=True).setting == "activation_checkpointing"


def test_a_model_of_an_absent_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packages, "find_spec", lambda name: None if name == "transformers" else find_spec(name)
    )
    assert "pip install 'stepscope[hf]'" in str(refusal(model="hf-gpt2"))
    check_fit(resolve({"model": "transformer"}))


@pytest.mark.parametrize("installed", ["4.57.6", "5.0.0rc1"])
def test_a_model_of_a_library_that_is_too_old_says_which_version_it_needs(
    monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    monkeypatch.setattr(packages, "installed_version", lambda _package: installed)
    message = str(refusal(model="hf-gpt2"))
    assert f"needs transformers 5.1 or newer, not {installed}: pip install -U" in message
    for newer in ("5.1.0", "5.10.0", None):
        monkeypatch.setattr(packages, "installed_version", lambda _package, newer=newer: newer)
        check_fit(resolve({"model": "hf-gpt2"}))


def test_every_kind_of_data_has_a_source_without_a_path() -> None:
    cataloged = set(DataKind) - {DataKind.TENSORS}  # Which is that of a person's own dataset.
    assert {source.kind for source in DATA.values() if not source.needs_path} >= cataloged


@pytest.mark.parametrize(
    ("data", "model"),
    [(None, "transformer"), ("synthetic", "transformer"), ("stdlib-text", "transformer"), ("digits", "cnn")],
)
def test_a_run_without_a_model_trains_one_that_fits_the_data(data: str | None, model: str) -> None:
    assert default_model("transformer", data) == model
