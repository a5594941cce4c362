"""Each data source yields what its shape says, the same every time, and tells what it cannot read."""

import hashlib
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.catalog import DATA
from harness.data import digits as digits_module
from harness.data.shapes import CLASS_NAMES
from harness.data.source import DataSource, open_source
from harness.data.synthetic import SyntheticSource
from harness.errors import SettingError, StepscopeError
from harness.records.data import DataKind
from harness.settings import Settings
from harness.settings.resolve import resolve

COLORS = {"red": (200, 20, 20), "blue": (20, 20, 200), "green": (20, 160, 20)}


def paint(folder: Path, each: int = 4) -> Path:
    """A folder of plain pictures in one subfolder a color, of several formats and sizes."""
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            kind = ("png", "jpg", "gif", "bmp")[number % 4]
            Image.new("RGB", (20 + 13 * number, 31), color).save(folder / name / f"{number}.{kind}")
    return folder


def settings_for(key: str, folder: Path, **values: object) -> Settings:
    """Settings of a model that takes the data `key`, with own files in `folder` where it needs some."""
    kind = DATA[key].kind
    own: dict[str, object] = {"model": "lstm" if kind is DataKind.TEXT else "cnn", "data": key}
    if key == "images":
        own["data_path"] = str(paint(folder / "pictures"))
    if key == "text":
        (folder / "book.txt").write_text("The same sentence, over and over. " * 100)
        own["data_path"] = str(folder / "book.txt")
    return resolve(own | values)


def open_for(key: str, folder: Path, **values: object) -> DataSource:
    return open_source(settings_for(key, folder, **values))


@pytest.mark.slow
@pytest.mark.parametrize("key", DATA)
def test_a_batch_is_what_the_shape_says(key: str, tmp_path: Path) -> None:
    source = open_for(key, tmp_path)
    shape = source.shape
    inputs, targets = source.fetch(np.array([0, 3, 1]))
    assert targets.dtype is torch.int64
    assert inputs.is_contiguous()
    if shape.kind is DataKind.IMAGE:
        assert inputs.dtype is torch.float32
        assert inputs.shape == (3, shape.channels, shape.height, shape.width)
        assert targets.shape == (3,)
        assert 0 <= inputs.min() <= inputs.max() <= 1
        assert targets.max() < shape.classes
    else:
        assert inputs.dtype is torch.int64
        assert inputs.shape == targets.shape == (3, shape.sequence_length)
        assert inputs.max() < shape.vocabulary
        assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.slow
@pytest.mark.parametrize("key", DATA)
def test_the_same_indices_give_the_same_batch_also_after_a_journey_to_a_worker(
    key: str, tmp_path: Path
) -> None:
    source = open_for(key, tmp_path)
    indices = np.array([2, 0, 1])
    first = source.fetch(indices)
    again = pickle.loads(pickle.dumps(source)).fetch(indices)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["digits", "shapes", "images", "stdlib-text", "text"])
def test_a_sample_does_not_depend_on_its_neighbors(key: str, tmp_path: Path) -> None:
    source = open_for(key, tmp_path)
    together = source.fetch(np.array([4, 2, 3]))
    alone = source.fetch(np.array([2]))
    torch.testing.assert_close(together.inputs[1:2], alone.inputs)
    assert torch.equal(together.targets[1:2], alone.targets)


@pytest.mark.parametrize("size_px", [8, 13, 32, 96])
def test_digits_come_at_any_size(size_px: int, tmp_path: Path) -> None:
    source = open_for("digits", tmp_path, image_size=size_px)
    assert len(source) == 1797
    assert source.fetch(np.array([5])).inputs.shape == (1, 1, size_px, size_px)


def test_digits_are_those_that_were_published(tmp_path: Path) -> None:
    """By the UCI repository's description: counts per class, and 16 shades of 4×4 binary pixels."""
    digits = open_for("digits", tmp_path, image_size=8).fetch(np.arange(1797))
    assert np.bincount(digits.targets).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    shades = digits.inputs * 16
    assert torch.equal(shades, shades.round())
    assert (shades.min().item(), shades.max().item()) == (0, 16)


def test_digits_come_with_the_origin_of_the_very_file() -> None:
    file = Path(digits_module.__file__).with_name("digits.csv.gz")
    assert hashlib.sha256(file.read_bytes()).hexdigest() in file.with_name("digits.md").read_text()


def test_shapes_show_all_classes_about_equally_often(tmp_path: Path) -> None:
    source = open_for("shapes", tmp_path, image_size=8)
    counts = np.bincount(source.fetch(np.arange(3000)).targets)
    assert len(counts) == len(CLASS_NAMES)
    assert counts.min() > 400


def test_shapes_follow_the_seed(tmp_path: Path) -> None:
    one, other = (open_for("shapes", tmp_path, seed=seed).fetch(np.arange(8)) for seed in (1, 2))
    assert not torch.equal(one.inputs, other.inputs)


def test_shapes_come_in_any_number_at_any_size(tmp_path: Path) -> None:
    source = open_for("shapes", tmp_path, data_samples=100_000_000, image_size=50)
    assert len(source) == 100_000_000
    assert source.fetch(np.array([99_999_999])).inputs.shape == (1, 3, 50, 50)


def test_a_shape_looks_the_same_at_twice_the_size(tmp_path: Path) -> None:
    small = open_for("shapes", tmp_path, image_size=32).fetch(np.arange(12)).inputs
    large = open_for("shapes", tmp_path, image_size=64).fetch(np.arange(12)).inputs
    assert (torch.nn.functional.avg_pool2d(large, 2) - small).abs().mean() < 0.01


@pytest.mark.slow
def test_the_standard_library_is_bounded_and_is_python(tmp_path: Path) -> None:
    source = open_for("stdlib-text", tmp_path, sequence_length=512)
    assert 1_000 < len(source) <= 8 * 2**20 // 512
    text = bytes(source.fetch(np.arange(200)).inputs.flatten().tolist()).decode(errors="replace")
    assert "import" in text
    assert "def " in text


def test_the_standard_library_is_read_in_the_order_of_its_paths_without_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "b.py",
        "b/a.py",
        "b/c/d.py",
        "a.py",
        "b.txt",
        "site-packages/big.py",
        "b/site-packages/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name:32}")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    source = open_for("stdlib-text", tmp_path, sequence_length=32)
    text = bytes(source.fetch(np.arange(len(source))).inputs.flatten().tolist()).decode()
    assert text.split() == ["a.py", "b/a.py", "b/c/d.py"]  # The last sample needs a byte that follows it.


def test_without_a_standard_library_another_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "absent"))
    with pytest.raises(SettingError, match=r"no source files in .*absent.*use data='text'"):
        open_for("stdlib-text", tmp_path)


def test_own_pictures_are_labelled_by_folder_in_alphabetical_order(tmp_path: Path) -> None:
    source = open_for("images", tmp_path)
    inputs, labels = source.fetch(np.arange(12))
    assert source.shape.classes == 3
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert inputs.mean((0, 2, 3)).shape == (3,)
    strongest = inputs.mean((2, 3)).argmax(1)
    assert strongest.tolist() == [2] * 4 + [1] * 4 + [0] * 4
    assert source.note is None


def test_files_that_are_no_pictures_are_left_out_and_counted(tmp_path: Path) -> None:
    settings = settings_for("images", tmp_path)
    folder = tmp_path / "pictures" / "blue"
    (folder / "notes.txt").write_text("no picture")
    whole = (folder / "0.png").read_bytes()
    (folder / "torn.png").write_bytes(whole[: len(whole) // 2])
    source = open_source(settings)
    assert len(source) == 12
    assert source.note is not None
    assert source.note.startswith("2 files could not be read as an image and skipped; the first is")
    assert "notes.txt" in source.note


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "cats").mkdir(parents=True)
    settings = resolve({"model": "cnn", "data": "images", "data_path": str(tmp_path / "empty")})
    with pytest.raises(SettingError, match="has no images in subfolders"):
        open_source(settings)


def test_a_class_folder_without_a_readable_picture_is_no_class(tmp_path: Path) -> None:
    settings = settings_for("images", tmp_path)
    (tmp_path / "pictures" / "aaa").mkdir()
    assert open_source(settings).shape.classes == 3


def test_a_picture_that_vanishes_in_mid_run_is_named(tmp_path: Path) -> None:
    source = open_for("images", tmp_path)
    shutil.rmtree(tmp_path / "pictures" / "green")
    with pytest.raises(StepscopeError, match=r"green/0.png' can no longer be read"):
        source.fetch(np.array([0, 4]))


def test_own_text_may_be_a_folder_and_binary_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b" * 100)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.txt").write_text("a" * 100)
    (tmp_path / "c.bin").write_bytes(b"\x00\x01" * 100)
    source = open_source(
        resolve({"model": "lstm", "data": "text", "data_path": str(tmp_path), "sequence_length": 10})
    )
    text = bytes(source.fetch(np.arange(len(source))).inputs.flatten().tolist())
    assert text == b"a" * 100 + b"b" * 90
    assert source.note is not None
    assert source.note.startswith("1 file could not be read as text")
    assert "c.bin" in source.note


def test_too_little_text_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    settings = resolve({"model": "lstm", "data": "text", "data_path": str(tmp_path / "short.txt")})
    with pytest.raises(SettingError, match="has 5 bytes of readable text, and one sample needs 65"):
        open_source(settings)


@pytest.mark.parametrize(("model", "kind"), [("cnn", DataKind.IMAGE), ("gru", DataKind.TEXT)])
def test_synthetic_data_takes_the_kind_the_model_asks_for(model: str, kind: DataKind) -> None:
    source = open_source(resolve({"model": model, "data": "synthetic", "data_samples": 50}))
    assert isinstance(source, SyntheticSource)
    assert source.shape.kind is kind
    assert len(source) == 50
    assert len(source.batch_on(torch.device("cpu"), 7).inputs) == 7
