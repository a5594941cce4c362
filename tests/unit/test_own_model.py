"""A person's own model and dataset in the catalog's loop."""

import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.catalog import data, model
from harness.catalog.own import absolute_key, digest, model_and_size, parse_own
from harness.data.source import open_source, shape_of
from harness.errors import SettingError, StepscopeError
from harness.models.building import build_model
from harness.predict.answer import Impossible, Prediction, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.records.data import DataKind, TensorShape
from harness.records.run import DeviceKind, RunState
from harness.settings import Settings
from harness.settings.resolve import check_fit, resolve
from harness.store.home import Home, name_stem
from harness.store.reader import LogReader
from harness.train.flops import flops_rows
from tests.warm_start import WarmProcess

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODEL = f"{SCRIPTS}/own_model.py"
DATA = f"{SCRIPTS}/own_data.py"


def own(build: str = "build", dataset: str = "dataset", **values: Any) -> Settings:
    settings = resolve({"model": f"{MODEL}:{build}", "data": f"{DATA}:{dataset}", "device": "cpu", **values})
    check_fit(settings)
    return settings


@pytest.mark.parametrize("key", ["cnn", "my_model.py", "my_model.py:", "my_model.py:1x", "C:build", ":build"])
def test_other_words_name_no_object_of_a_file(key: str) -> None:
    assert parse_own(key) is None


def test_a_key_is_made_absolute_where_the_file_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    assert absolute_key("model", "own_model.py:build") == f"{MODEL}:build"
    assert absolute_key("model", "cnn") == "cnn"
    with pytest.raises(SettingError, match="There is no file 'nothing"):
        absolute_key("model", "nothing.py:build")


def test_the_digest_follows_the_content_of_the_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("a = 1\n")
    first = digest(f"{file}:a", "digits")
    file.write_text("a = 22\n")
    assert first != digest(f"{file}:a", "digits")
    assert digest("cnn", "digits") is None


@pytest.mark.parametrize("build", ["build", "build_regression"])
def test_an_own_model_returns_its_loss_on_a_batch_of_the_own_dataset(build: str) -> None:
    settings = own(build)
    source = open_source(settings)
    inputs, targets = source.fetch(np.arange(8))
    loss = build_model(settings, source.shape)(inputs, targets)
    assert loss.shape == ()
    assert loss.requires_grad


def test_the_shape_is_that_of_a_sample() -> None:
    shape = shape_of(own())
    assert shape.kind is DataKind.TENSORS
    assert (shape.inputs, shape.targets) == (TensorShape((12,), "float32"), TensorShape((), "int64"))


def test_a_source_in_a_worker_opens_the_dataset_anew() -> None:
    source = open_source(own(dataset="make", batch_size=5))
    copy = pickle.loads(pickle.dumps(source))
    assert len(copy) == len(source) == 20
    assert torch.equal(copy.fetch(np.array([3]))[0], source.fetch(np.array([3]))[0])


@pytest.mark.parametrize(
    ("build", "dataset", "sentence"),
    [
        ("nothing", "dataset", "own_model.py has no 'nothing'; it defines .*build"),
        ("build_number", "dataset", "build_number returned int; it has to return a torch.nn.Module"),
        (
            "build",
            "no_pairs",
            r"Samples of own_data.py:no_pairs are float; they have to be \(inputs, targets\)",
        ),
        ("build", "empty", "own_data.py:empty has no samples"),
        ("build", "number", "own_data.py:number is int, which has no samples by number"),
    ],
)
def test_what_is_no_model_or_no_dataset_is_refused_with_what_it_is(
    build: str, dataset: str, sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        build_model(settings := own(build, dataset), open_source(settings).shape)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "class NoLength(Dataset):\n    def __getitem__(self, index): return 1.0, 1\ndata = NoLength()",
            "is NoLength, which has no length; it has to be a map-style dataset, with `__getitem__`",
        ),
        (
            "class Endless(IterableDataset):\n    def __iter__(self): yield 1.0, 1\ndata = Endless()",
            "is Endless, which has no samples by number; it has to be a map-style dataset",
        ),
        ("def data(settings): pass", "returned NoneType, which has no samples by number"),
        ("def data(): return [(1.0, 1)]", r"does not take the settings; it is called as data\(settings\)\."),
        (
            "class data(Dataset):\n    def __len__(self): return 1",
            r"does not take the settings; it is called as data\(settings\)\.",
        ),
    ],
)
def test_what_is_no_dataset_is_refused_with_what_it_lacks(tmp_path: Path, code: str, sentence: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from torch.utils.data import Dataset, IterableDataset\n{code}\n")
    with pytest.raises(SettingError, match=rf"^mine\.py:data {sentence}"):
        open_source(own().model_copy(update={"data": f"{path}:data"}))


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("raise OSError('no such\\nfile')", "OSError: no such file"),
        ("return super().__getitem__(index)", "NotImplementedError: Subclasses of Dataset should implement"),
    ],
)
def test_a_dataset_of_which_the_first_sample_fails_is_named(tmp_path: Path, body: str, failure: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch.utils.data import Dataset\n\n"
        f"class Failing(Dataset):\n    def __len__(self): return 2\n"
        f"    def __getitem__(self, index): {body}\n\ndata = Failing()\n"
    )
    with pytest.raises(SettingError, match=rf"^Sample 0 of mine\.py:data failed: {failure}"):
        shape_of(own().model_copy(update={"data": f"{path}:data"}))


def test_a_loss_that_is_no_scalar_is_named() -> None:
    settings = own("build_without_loss")
    source = open_source(settings)
    with pytest.raises(StepscopeError, match=r"is a tensor of shape \(2, 3\); its loss function has to"):
        build_model(settings, source.shape)(*source.fetch(np.arange(2)))


def test_a_name_that_is_missing_lists_those_that_the_file_makes(tmp_path: Path) -> None:
    file = tmp_path / "many.py"
    functions = "\n".join(f"def build_{number}(settings): ..." for number in range(20))
    file.write_text(f"import torch\nfrom torch import nn\nfrom pathlib import Path\n{functions}\n")
    with pytest.raises(SettingError, match=r"it defines build_0, build_1, .*, build_11 and 8 more") as caught:
        build_model(own().model_copy(update={"model": f"{file}:bulid"}), open_source(own()).shape)
    assert "torch" not in str(caught.value)


def test_a_lazy_module_without_its_size_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lazy.py"
    file.write_text(
        "from torch import nn\n\ndef build(settings):\n    return nn.Sequential(nn.LazyLinear(3))\n"
    )
    with pytest.raises(SettingError, match=r"without the size of 0\.weight, of a lazy module; call it once"):
        build_model(own().model_copy(update={"model": f"{file}:build"}), open_source(own()).shape)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "def build(settings): return nn.Linear(2, 1)",
            r"returned Linear alone, which is then called as model",
        ),
        ("def build(): return nn.Linear(2, 1), nn.MSELoss()", r"does not take the settings"),
        (
            "def build(settings): return nn.ReLU(), nn.MSELoss()",
            r"returned a model without a parameter to train",
        ),
    ],
)
def test_what_cannot_train_is_refused_before_it_runs(tmp_path: Path, code: str, sentence: str) -> None:
    path = tmp_path / "short.py"
    path.write_text(f"from torch import nn\n{code}\n")
    with pytest.raises(SettingError, match=rf"short\.py:build {sentence}"):
        build_model(own().model_copy(update={"model": f"{path}:build"}), open_source(own()).shape)


@pytest.mark.parametrize(
    "code",
    [
        "def build(settings): return nn.Identity(), Head()",
        "class Model(nn.Linear):\n    def __call__(self, x, y): return super().__call__(x).mean()\n"
        "def build(settings): return Model(2, 1)",
    ],
    ids=["a loss with parameters", "its own call"],
)
def test_what_trains_in_an_unusual_way_is_built(tmp_path: Path, code: str) -> None:
    path = tmp_path / "short.py"
    head = "class Head(nn.Linear):\n    def __init__(self): super().__init__(2, 1)\n"
    path.write_text(f"from torch import nn\n{head}{code}\n")
    model = build_model(own().model_copy(update={"model": f"{path}:build"}), open_source(own()).shape)
    assert any(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("raise SystemExit(2)", "it exits with 2. Write"),
    ],
)
def test_a_file_that_fails_on_import_is_named_with_its_error(tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text(f"{code}\n")
    settings = resolve({"model": f"{tmp_path}/broken.py:build", "data": "digits", "device": "cpu"})
    with pytest.raises(SettingError, match=f"cannot be imported: {reason}"):
        build_model(settings, shape_of(settings))


def test_an_own_model_needs_samples_and_a_catalog_model_its_own_kind() -> None:
    with pytest.raises(SettingError, match="needs samples: --data my_data"):
        resolve({"model": f"{MODEL}:build"})
    with pytest.raises(SettingError, match="does not know the shape of its samples"):
        own(data="synthetic")
    with pytest.raises(SettingError, match="yields samples of your own"):
        check_fit(resolve({"model": "cnn", "data": f"{DATA}:dataset"}))


def test_an_own_model_is_named_without_its_folder_and_size() -> None:
    assert model_and_size("cnn", "laptop") == "cnn laptop"
    assert model_and_size("/nowhere/my_model.py:build", "laptop") == "my_model.py:build"
    assert (name_stem("cnn"), name_stem("/nowhere/my_model.py:build")) == ("cnn", "my_model")


def test_keys_of_files_are_described_without_importing_them() -> None:
    assert model("/nowhere/my_model.py:build").title == "my_model.py:build"
    assert data("/nowhere/my_data.py:dataset").kind is DataKind.TENSORS


def test_an_own_model_is_predicted_before_it_runs() -> None:
    question = Question.of(own(batch_size=16), Target(DeviceKind.CPU, "the CPU"))
    answer = predict(question, None)
    assert isinstance(answer, Prediction)
    assert [module.module for module in answer.modules] == ["model.0", "model.1", "model.2", "_loss"]
    weights_bytes = next(part.size_bytes for part in answer.parts if part.category == "weights")
    assert weights_bytes >= 4 * (12 * 16 + 16 + 16 * 3 + 3)  # And malloc's own bytes for each tensor.


@pytest.mark.slow
def test_an_own_model_trains_with_its_settings_recorded(tmp_path: Path) -> None:
    folder = Home(tmp_path).create(None, own(batch_size=4, num_workers=1, max_steps=6), 0)
    assert WarmProcess(folder).wait(60) == 0
    with LogReader(folder.log) as reader:
        run = reader.run()
        assert (run.state, reader.extent().last) == (RunState.FINISHED, 6)
        assert json.loads(run.settings)["model"] == f"{MODEL}:build"


_WITH_TENSORS = """
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

SCALE = torch.tensor([1.0, 2.0, 3.0])

@lru_cache
def offset(count):
    return torch.ones(count)

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 3)

    def forward(self, inputs):
        return self.linear(inputs) * SCALE + offset(3)

def build(settings):
    import made_late
    with Path(__file__).with_name("calls").open("a") as calls:
        calls.write("built ")
    return Scaled(), lambda outputs, targets: nn.functional.cross_entropy(outputs * made_late.FACTOR, targets)

def build_wrong(settings):
    assert settings.batch_size > 100, "too small"
"""


@pytest.fixture
def with_tensors(tmp_path: Path) -> Iterator[str]:
    """A model's file with tensors in its module, in a cache, and in a module that it imports late."""
    (tmp_path / "with_tensors.py").write_text(_WITH_TENSORS)
    (tmp_path / "made_late.py").write_text("import torch\n\nFACTOR = torch.tensor(2.0)\n")
    yield f"{tmp_path}/with_tensors.py"
    sys.modules.pop("made_late", None)
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]


def test_a_model_with_tensors_outside_of_it_is_predicted_again_and_again(with_tensors: str) -> None:
    for size in (16, 32, 16):
        settings = own(batch_size=size).model_copy(update={"model": f"{with_tensors}:build"})
        answer = predict(Question.of(settings, Target(DeviceKind.CPU, "the CPU")), None)
        assert isinstance(answer, Prediction), answer


def test_what_a_persons_code_raises_ends_no_prediction(with_tensors: str) -> None:
    settings = own(batch_size=16).model_copy(update={"model": f"{with_tensors}:build_wrong"})
    answer = predict(Question.of(settings, Target(DeviceKind.CPU, "the CPU")), None)
    assert isinstance(answer, Impossible)
    assert "too small" in answer.reason


@pytest.mark.slow
def test_a_model_with_tensors_outside_of_it_trains_and_is_built_once(
    tmp_path: Path, with_tensors: str
) -> None:
    settings = own(batch_size=4, max_steps=6).model_copy(update={"model": f"{with_tensors}:build"})
    folder = Home(tmp_path).create(None, settings, 0)
    assert WarmProcess(folder).wait(60) == 0
    with LogReader(folder.log) as reader:
        assert (reader.run().state, reader.extent().last) == (RunState.FINISHED, 6)
    assert Path(with_tensors).with_name("calls").read_text() == "built "


_COMPILED = """
import torch
from torch import nn

@torch.compile(backend="eager", fullgraph=True)
def activated(outputs):
    return torch.relu(outputs)

class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 3)

    def forward(self, inputs):
        return activated(self.linear(inputs))

def build(settings):
    return Compiled(), nn.CrossEntropyLoss()
"""


@pytest.mark.slow
def test_a_model_with_a_compiled_function_trains_and_runs_within_no_dispatch_mode(tmp_path: Path) -> None:
    file = tmp_path / "compiled.py"
    file.write_text(_COMPILED)
    settings = own(batch_size=4, max_steps=6, memory_history=True)
    folder = Home(tmp_path).create(None, settings.model_copy(update={"model": f"{file}:build"}), 0)
    assert WarmProcess(folder).wait(60) == 0
    with LogReader(folder.log) as reader:
        assert (reader.run().state, reader.extent().last) == (RunState.FINISHED, 6)
        assert "operations not counted" in [row.label for _, row in reader.events()]


def test_the_operations_of_an_own_model_are_counted_on_a_copy() -> None:
    settings = own(batch_size=4)
    shape = open_source(settings).shape
    network = build_model(settings, shape)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    rows = flops_rows(settings, shape, network)
    assert torch.equal(torch.get_rng_state(), state)
    weights = 12 * 16 + 16 * 3
    # Two operations for each weight forward; backward as many for the gradients of the weights, and for those
    # of the second layer's inputs.
    assert rows[0].flops_per_sample == 2 * (2 * weights + 16 * 3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


PAGE = Path(__file__).parents[2] / "docs" / "your-own-training.md"


@pytest.mark.parametrize("name", ["build", "build_with_loss"])
def test_the_examples_of_the_page_train(name: str, tmp_path: Path) -> None:
    section = (
        PAGE.read_text(encoding="utf-8").split("## Your own model in Stepscope's loop")[1].split("\n## ")[0]
    )
    imports = "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
    file = tmp_path / "mine.py"
    file.write_text(imports + "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)))
    settings = resolve({"model": f"{file}:{name}", "data": f"{file}:dataset", "device": "cpu"})
    check_fit(settings)
    source = open_source(settings)
    assert build_model(settings, source.shape)(*source.fetch(np.arange(4))).requires_grad
