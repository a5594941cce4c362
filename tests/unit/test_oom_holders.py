"""Memory that a script keeps where none of its frames has a variable for it."""

import sys
from functools import cache
from types import FrameType, ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from harness.watch.oom.holders import script_modules
from harness.watch.oom.variables import largest_variables

_CPU = torch.device("cpu")
_BYTES = 4_000


def variables_of(frame: FrameType, *owned: Tensor) -> dict[str, int]:
    variables = largest_variables([frame], [frame.f_lineno], _CPU, owned)
    return {one.name: one.held_bytes for one in variables}


class Checker:
    """An object with memory that is behind a variable of its own."""

    def __init__(self) -> None:
        self.outputs = [torch.ones(600), torch.ones(600)]
        self.inputs = [torch.ones(500)]

    def check(self, tensor: Tensor) -> None:
        scaled = tensor + 1
        raise ValueError(f"{len(scaled)} values are too many")


def test_a_kept_error_holds_what_its_functions_had() -> None:
    def fill() -> FrameType:
        checker, errors = Checker(), list[ValueError]()
        for _ in range(3):
            try:
                checker.check(torch.ones(1_000))
            except ValueError as error:
                errors.append(error)
        return sys._getframe()

    assert variables_of(fill()) == {
        "errors": 6 * _BYTES,
        "checker.outputs": 4_800,
        "checker.inputs": _BYTES // 2,
    }


def test_errors_behind_a_kept_one_and_their_arguments_are_held() -> None:
    def fail() -> None:
        try:
            Checker().check(torch.ones(1_000))
        except ValueError as error:
            raise RuntimeError(torch.ones(1_000)) from error

    def fill() -> FrameType:
        kept: Exception | None = None
        try:
            fail()
        except RuntimeError as error:
            kept = error
        assert kept
        return sys._getframe()

    assert variables_of(fill()) == {"kept": 3 * _BYTES}


def test_an_error_does_not_hold_the_variables_of_the_function_that_failed() -> None:
    def fill() -> FrameType:
        outputs = [torch.ones(1_000)]
        try:
            raise ValueError
        except ValueError as error:
            kept = error
        assert outputs, kept
        return sys._getframe()

    assert variables_of(fill()) == {"outputs": _BYTES}


def test_a_replaced_optimizer_that_a_scheduler_keeps_holds_its_state() -> None:
    model = nn.Linear(10, 100, bias=False)
    weight = model.weight

    def fill() -> FrameType:
        schedulers = []
        for _ in range(2):
            optimizer = torch.optim.Adam(model.parameters())
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        return sys._getframe()

    variables = variables_of(fill(), weight)
    assert variables["schedulers"] == pytest.approx(2 * 2 * _BYTES, rel=0.05)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a script's own, which keeps a tensor."""
    module = ModuleType("registry")
    module.__file__ = "/project/registry.py"
    module.history = [torch.ones(1_000)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "registry", module)
    return module


def test_a_list_in_an_imported_module_of_the_script_is_named_with_its_file(registry: ModuleType) -> None:
    frame = sys._getframe()
    modules = [one for one in script_modules([frame]) if one[1] is vars(registry)]
    (variable,) = largest_variables([], [], _CPU, (), modules)
    assert (variable.name, variable.site, variable.held_bytes) == ("history", "project/registry.py", _BYTES)


def test_the_modules_of_a_script_are_none_of_an_installed_package(registry: ModuleType) -> None:
    files = {file for file, _ in script_modules([])}
    assert {"project/registry.py", "tests/unit/test_oom_holders.py"} <= files
    assert not [file for file in files if file.startswith(("torch/", "numpy/", "harness/", "pytest/"))]


def test_a_module_with_a_frame_that_failed_is_not_searched_twice(registry: ModuleType) -> None:
    code = compile("import sys\nframe = sys._getframe()", "/project/registry.py", "exec")
    exec(code, vars(registry))
    assert "project/registry.py" not in {file for file, _ in script_modules([vars(registry)["frame"]])}


class Features:
    """A class with a cache of what its method has returned."""

    @cache  # noqa: B019 - The leak that is tested.
    def get(self, index: int) -> Tensor:
        return torch.full((1_000,), float(index))


def test_the_cache_of_a_method_holds_what_it_has_returned() -> None:
    def fill() -> FrameType:
        kind = Features
        for index in range(3):
            kind().get(index)
        return sys._getframe()

    Features.get.cache_clear()
    assert variables_of(fill()) == {"kind.get": 3 * _BYTES}
    Features.get.cache_clear()


def test_long_strings_count_where_they_are_in_the_heap() -> None:
    """Short ones are in Python's own pools. Of a string of ASCII each character is a byte."""

    def fill() -> FrameType:
        lines, by_step = [f"{step}" * 2_000 for step in range(10)], {1: "short", 2: "-" * _BYTES}
        text, words = "=" * _BYTES, ["short"] * 100
        assert lines, (by_step, text, words)
        return sys._getframe()

    assert variables_of(fill()) == {
        "lines": pytest.approx(10 * 2_000, rel=0.05),
        "by_step": pytest.approx(_BYTES, rel=0.05),
        "text": pytest.approx(_BYTES, rel=0.05),
    }


def test_data_frames_hold_the_arrays_of_their_columns() -> None:
    def fill() -> FrameType:
        table = pd.DataFrame(np.ones((250, 2)))
        tables = [pd.DataFrame(np.ones((250, 4))), pd.Series(np.ones(500))]
        assert len(table) + len(tables)
        return sys._getframe()

    assert variables_of(fill()) == {"tables": 3 * _BYTES, "table": _BYTES}
