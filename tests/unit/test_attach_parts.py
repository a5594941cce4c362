"""The small parts of the watch over a script: cycles of optimizers, imports, discovery, the launch."""

import gc
import sys
from importlib.util import find_spec
from pathlib import Path
from zipapp import create_archive

import pytest
import torch
from torch import nn

from harness.attach.cycle import UpdateCycle
from harness.attach.discovery import (
    ScriptModels,
    as_one_model,
    find_models,
    live_optimizers,
    owned_parameters,
)
from harness.attach.ending import ScriptStopped
from harness.attach.imports import after_import
from harness.attach.launch import ENDS_BY_SIGINT, Script, execute, exit_code
from harness.attach.manual import ManualUpdates
from harness.errors import UsageError
from tests.attach_factories import ran


def steps_in(events: str) -> list[int]:
    """The number of steps that end at each event: "b" is a batch, any other letter an optimizer's step."""
    cycle = UpdateCycle()
    return [int(cycle.batch_requested() if one == "b" else cycle.updated(ord(one))) for one in events]


@pytest.mark.parametrize(
    ("iteration", "times", "steps"),
    [
        ("bA", 5, 5),
        ("A", 5, 5),
        ("bDG", 5, 5),
        ("DG", 5, 5),
        ("bABC", 5, 5),
        ("bbA", 5, 5),
        ("bDbDbDG", 3, 9),
        ("bAbB", 10, 20),
        ("bbAbbB", 10, 20),
        ("bAbBbC", 10, 30),
        ("bAbAbBbB", 10, 40),
        ("bPQbQ", 10, 20),
        ("bGDbGDbGDD", 5, 15),
    ],
)
def test_every_iteration_is_one_step_whatever_number_of_optimizers_it_has(
    iteration: str, times: int, steps: int
) -> None:
    assert sum(steps_in(iteration * times)) == steps


def test_an_optimizer_that_replaces_another_one_ends_its_steps() -> None:
    assert sum(steps_in("bA" * 3 + "bB" * 3)) == 6


def test_an_optimizer_that_follows_another_one_without_batches_loses_one_step() -> None:
    # The first of its steps may still belong to the iteration of the other one.
    assert steps_in("AAABBBB") == [1, 1, 1, 0, 1, 1, 1]
    assert steps_in("AABCC") == [1, 1, 0, 0, 1]
    assert steps_in("AABABAB") == [1, 1, 0, 1, 0, 0, 1]
    assert steps_in("AABCBCBC") == [1, 1, 0, 0, 0, 1, 0, 1]
    assert steps_in("AABCABCABC") == [1, 1, 0, 0, 1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("iteration", "times", "steps"),
    [
        ("QQP", 20, 40),
        ("QPQ", 20, 40),
        ("QQPE", 20, 40),
        ("DDDDDG", 8, 40),
        ("bQbQP", 20, 40),
        ("bQbQbQPE", 10, 30),
    ],
)
def test_an_optimizer_that_steps_in_some_iterations_costs_no_step(
    iteration: str, times: int, steps: int
) -> None:
    assert sum(steps_in(iteration * times)) == steps


@pytest.mark.parametrize(
    ("iteration", "ends"),
    [("QQPP", "1100"), ("QQPEPE", "110000"), ("DGG", "100"), ("CDCDPP", "010100")],
)
def test_an_optimizer_that_makes_up_for_its_delay_by_two_updates_ends_no_step(
    iteration: str, ends: str
) -> None:
    assert "".join(map(str, steps_in(iteration * 5)))[-3 * len(ends) :] == ends * 3


def test_an_optimizer_that_is_the_only_one_ends_every_step() -> None:
    cycle = UpdateCycle()
    assert [cycle.only, cycle.updated(1), cycle.only] == [None, True, 1]
    cycle.updated(2)
    assert cycle.only is None
    assert [cycle.updated(1), cycle.updated(1), cycle.only] == [True, True, 1]
    cycle.forget(1)
    assert cycle.only is None


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        ("AAAAABBBBB" * 2 + "AAAAAAAA", 28 - 1 - 3 * 2),
        ("PPPPPPPPPPVVVVVVVVVV" * 5, 100 - 1 - 8 * 2),
        ("DDDDDG" * 4, 20),
        ("bDbDbDbDbDG" * 4, 20),
        ("DGDGDGXX" * 20, 61),
        ("bDG" * 10 + "bD" * 10 + "bDG" * 40, 60),
        (("bxz" * 3 + "by" * 3) * 10, 60),
    ],
)
def test_trainings_that_take_turns_miss_few_steps_at_each_turn(events: str, steps: int) -> None:
    assert sum(steps_in(events)) == steps


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ("DGDG", "0101"),
        ("bDGbDG", "001001"),
        ("bAbAbA", "001101"),
        ("AAA", "011"),
        ("bDGGbDGG", "00100010"),
    ],
)
def test_the_first_iteration_waits_for_the_expected_optimizers_until_the_next_batch(
    events: str, ends: str
) -> None:
    cycle = UpdateCycle(lambda key: {ord("G") if key != ord("G") else ord("D")})
    is_end = [cycle.batch_requested() if one == "b" else cycle.updated(ord(one)) for one in events]
    assert "".join(str(int(one)) for one in is_end) == ends


def test_an_optimizer_between_those_of_single_tasks_makes_no_steps() -> None:
    cycle, meta, steps = UpdateCycle(), 100, 0
    for task in range(6):
        cycle.created(task)
        cycle.forget(task - 1)
        for _ in range(2):
            steps += cycle.only == task or cycle.updated(task)
        steps += cycle.updated(meta)
    assert steps == 2 * 6


def test_an_expected_optimizer_that_is_no_more_is_not_waited_for() -> None:
    cycle = UpdateCycle(lambda _key: {2})
    assert not cycle.updated(1)
    assert cycle.is_undecided
    cycle.forget(2)
    assert (cycle.is_undecided, cycle.updated(1)) == (False, True)


def test_an_optimizer_that_is_no_more_is_not_waited_for() -> None:
    cycle = UpdateCycle()
    assert [cycle.updated(key) for key in (1, 2, 1, 2, 1, 2)] == [True, False, True, False, False, True]
    cycle.forget(2)
    assert [cycle.updated(1), cycle.updated(1)] == [True, True]


def test_a_new_optimizer_with_the_id_of_one_that_is_no_more_is_another_one() -> None:
    cycle = UpdateCycle()
    assert [cycle.updated(1), cycle.updated(2)] == [True, False]
    cycle.forget(2)
    assert [cycle.updated(key) for key in (2, 1, 2, 1, 2)] == [False, True, False, False, True]


def test_without_an_optimizer_a_step_ends_where_gradients_are_cleared() -> None:
    manual = ManualUpdates(clears_gradients=True)
    assert not manual.cleared(is_called=False)
    manual.has_gradients = True
    assert not manual.model_called(is_evaluating=False)  # Another micro-batch.
    assert manual.model_called(is_evaluating=True)
    assert manual.cleared(is_called=False)


def test_without_an_optimizer_a_step_ends_at_the_call_where_gradients_are_cleared_after_it() -> None:
    manual = ManualUpdates(clears_gradients=True)
    manual.has_gradients = True
    assert not manual.model_called(is_evaluating=False)
    assert manual.cleared(is_called=True)
    assert manual.model_called(is_evaluating=False)


def test_a_weight_that_was_computed_from_others_has_no_gradient_to_watch() -> None:
    """As in meta-learning, where the updated weights replace the parameters; a warning would be an error."""
    manual, model = ManualUpdates(clears_gradients=False), nn.Linear(2, 1)
    model._parameters["weight"] = model.weight * 2  # type: ignore[assignment]
    model(torch.ones(1, 2)).sum().backward()
    manual.gradients_ended([model])
    assert not manual.were_cleared()
    model.bias.grad = None
    assert manual.were_cleared()


def test_without_an_optimizer_and_zero_grad_a_step_ends_at_the_next_call() -> None:
    manual = ManualUpdates(clears_gradients=False)
    assert not manual.model_called(is_evaluating=False)
    manual.has_gradients = True
    assert manual.model_called(is_evaluating=False)


@pytest.fixture
def a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "imported_by_a_test"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_an_import_is_followed_by_the_callback_once(a_module: str) -> None:
    calls: list[object] = []
    finders = list(sys.meta_path)
    after_import(a_module, lambda: calls.append(sys.modules[a_module]))
    assert calls == []
    module = __import__(a_module)
    assert (calls, module.value, sys.meta_path) == ([module], 1, finders)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__module__ != "harness.attach.imports"


def test_a_module_that_was_only_looked_for_is_still_followed(a_module: str) -> None:
    calls: list[int] = []
    after_import(a_module, lambda: calls.append(1))
    assert find_spec(a_module) is not None
    assert calls == []
    __import__(a_module)
    assert calls == [1]


def test_a_module_that_is_imported_already_has_the_callback_at_once() -> None:
    calls: list[int] = []
    after_import("torch", lambda: calls.append(1))
    assert calls == [1]


def test_models_are_the_outermost_modules_with_parameters_of_the_optimizers() -> None:
    inner = nn.Linear(3, 2)
    outer, other, head = nn.Sequential(inner, nn.ReLU()), nn.Linear(3, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(inner.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), lr=0.1)]
    models = find_models(owned_parameters(optimizers))
    assert {id(model) for model in models} == {id(outer), id(head)}
    assert id(other) not in {id(model) for model in models}


class Passing(torch.optim.Optimizer):
    """An optimizer that passes on the calls of another one, as Accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]
        return self.optimizer.param_groups


def test_optimizers_are_those_that_torch_reports_the_steps_of() -> None:
    gc.collect()
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    passing = Passing(optimizer)
    optimizers = live_optimizers()
    assert any(one is optimizer for one in optimizers)
    assert not any(one is passing for one in optimizers)


def test_several_models_are_one_under_the_names_of_the_scripts_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    monkeypatch.setattr(sys.modules["__main__"], "critic", first, raising=False)
    together = as_one_model([first, second])
    assert isinstance(together, ScriptModels)
    assert dict(together.named_children()) == {"critic": first, "Linear_2": second}
    assert as_one_model([first]) is first


@pytest.fixture
def as_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("as_a_process")
def test_a_script_runs_with_its_own_arguments_and_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text("answer = 42\n")
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom beside import answer\nprint(__name__, sys.argv, answer, __file__)\n")
    assert execute(Script(str(script), ("-m", "--name", "x"), is_module=False)) is None
    expected = ["__main__", [str(script), "-m", "--name", "x"], 42, str(script)]
    assert capsys.readouterr().out == " ".join(map(str, expected)) + "\n"
    sys.modules.pop("beside")


@pytest.mark.usefixtures("as_a_process")
def test_a_module_runs_as_by_dash_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import sys\nfrom . import __name__ as n\nprint(n, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    assert execute(Script("package_of_a_test.train", ("5",), is_module=True)) is None
    assert capsys.readouterr().out == "package_of_a_test ['5']\n"


@pytest.mark.usefixtures("as_a_process")
def test_the_traceback_of_a_script_begins_with_its_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    raise ValueError('no')\nfail()\n")
    error = execute(Script(str(script), (), is_module=False))
    assert exit_code(error) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{script}", line 3, in <module>']
    assert lines[-1] == "ValueError: no"


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(4), 4, ""),
        (SystemExit("wrong arguments"), 1, "wrong arguments\n"),
        (ScriptStopped("Stopped by request from shell."), 130, "stepscope: Stopped by request from shell.\n"),
        (KeyboardInterrupt(), ENDS_BY_SIGINT, "KeyboardInterrupt\n"),
        (ValueError("no"), 1, "ValueError: no\n"),
    ],
)
def test_exit_codes_are_pythons(
    error: BaseException | None, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (exit_code(error), capsys.readouterr().err) == (code, printed)


@pytest.mark.parametrize(("module", "is_called"), [("torch.distributed.c10d", False), ("__main__", True)])
def test_a_stop_is_one_line_unless_the_script_has_an_excepthook_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, *, is_called: bool
) -> None:
    def hook(*_error: object) -> None:
        print("the hook", file=sys.stderr)

    hook.__module__ = module
    monkeypatch.setattr(sys, "excepthook", hook)
    assert exit_code(ScriptStopped("Stopped by request from shell.")) == 130
    printed = "the hook\n" if is_called else "stepscope: Stopped by request from shell.\n"
    assert capsys.readouterr().err == printed


def test_a_script_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"There is no script 'nowhere.py' in .*; check the path"):
        Script("nowhere.py", (), is_module=False).check()


def test_a_script_at_a_path_that_cannot_be_looked_up_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be read: file name too long"):
        Script(f"{'a' * 256}.py", (), is_module=False).check()


def test_a_folder_and_an_archive_run_as_python_runs_them(tmp_path: Path) -> None:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "helper.py").write_text("NAME = 'helper'\n")
    (folder / "__main__.py").write_text("import helper\nprint(__name__, helper.NAME)\n")
    create_archive(folder, tmp_path / "tool.pyz")
    for script in (folder, tmp_path / "tool.pyz"):
        Script(str(script), (), is_module=False).check()
        assert ran(script) == (None, "__main__ helper\n", "")
        del sys.modules["helper"]


def test_a_module_that_is_not_there_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    error = execute(Script("no_such_package.train", (), is_module=True))
    assert exit_code(error) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("(ModuleNotFoundError: No module named 'no_such_package')")


def test_a_script_that_misses_a_module_itself_shows_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    script.write_text("import runpy\nrunpy.run_module('no_such_module')\n")
    error = ran(script).error
    assert isinstance(error, ImportError)
    assert error.__traceback__ is not None
