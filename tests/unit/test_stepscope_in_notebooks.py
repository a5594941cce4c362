"""The public package in a notebook, and in place of a TensorBoard writer."""

import sys
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.records.run import CommandKind, RunState
from tests.api_factories import (
    ENOUGH_STEPS,
    SmallTraining,
    folder_of,
    log_of,
    send,
    watch,
)


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


def test_a_run_links_to_its_page_in_a_notebook(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path, "mine") as run:
        assert f'href="http://localhost:8501/?run={folder_of(tmp_path).run_id}"' in run._repr_html_()


class FakeNotebook:
    """Stands in for the shell and the display of IPython, which is also the module."""

    def __init__(self) -> None:
        self.displayed: list[object] = []
        self.after_cell: list[Callable[..., None]] = []
        self.events = self

    def get_ipython(self) -> "FakeNotebook":
        return self

    def display(self, thing: object) -> None:
        self.displayed.append(thing)

    def register(self, _event: str, function: Callable[..., None]) -> None:
        self.after_cell.append(function)

    def unregister(self, _event: str, function: Callable[..., None]) -> None:
        self.after_cell.remove(function)

    def end_cell(self, error: BaseException | None = None) -> None:
        # IPython.core.interactiveshell.ExecutionResult
        result = SimpleNamespace(error_before_exec=None, error_in_exec=error)
        for function in list(self.after_cell):
            function(result)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> FakeNotebook:
    fake = FakeNotebook()
    module: Any = fake
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return fake


def test_a_notebook_shows_the_link_and_a_cell_can_be_run_again(
    training: SmallTraining, tmp_path: Path, notebook: FakeNotebook, capsys: pytest.CaptureFixture[str]
) -> None:
    first = watch(training, tmp_path / "first")
    training.train(first.steps(training.loader))
    notebook.end_cell()
    with watch(training, tmp_path / "again") as again:
        training.train(again.steps(training.loader))
    notebook.end_cell()
    assert notebook.displayed == [first, again]
    assert capsys.readouterr().err == ""
    assert notebook.after_cell == []
    for home in ("first", "again"):
        with log_of(tmp_path / home) as log:
            assert (log.run().state, len(log.last_steps(100))) == (RunState.FINISHED, 8)


def test_a_stop_that_interrupts_a_cell_ends_the_run(
    training: SmallTraining, tmp_path: Path, notebook: FakeNotebook
) -> None:
    run = watch(training, tmp_path)
    send(tmp_path, CommandKind.STOP)
    with pytest.raises(KeyboardInterrupt) as stop:
        training.train(islice(cycle(training.loader), ENOUGH_STEPS))
    # IPython shows these lines where an error has such a method.
    lines: Any = getattr(stop.value, "_render_traceback_", list)()
    assert lines == ["stepscope: Stopped by request from test."]
    assert run.is_stopped
    notebook.end_cell()
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED
    assert notebook.after_cell == []
    assert run.is_stopped
    assert list(run.steps([1, 2])) == []


@pytest.mark.parametrize(
    ("goes_on", "state"), [(False, RunState.STOPPED), (True, RunState.FINISHED)], ids=["left", "continued"]
)
def test_an_interrupted_cell_can_be_continued_and_else_the_run_is_stopped(
    training: SmallTraining, tmp_path: Path, notebook: FakeNotebook, *, goes_on: bool, state: RunState
) -> None:
    first = watch(training, tmp_path / "first")
    training.train(first.steps(training.loader))
    notebook.end_cell(KeyboardInterrupt())
    notebook.end_cell(NameError("a later cell, which does not train"))
    if goes_on:
        training.train(first.steps(training.loader))
        notebook.end_cell()
    with watch(training, tmp_path / "again"), log_of(tmp_path / "first") as log:
        assert (log.run().state, len(log.last_steps(100))) == (state, 8 + 8 * goes_on)
    assert not first.is_stopped


@pytest.mark.parametrize(
    ("goes_on", "state"), [(False, RunState.STOPPED), (True, RunState.FINISHED)], ids=["left", "continued"]
)
@pytest.mark.parametrize("ends_by", ["close", "watch"])
def test_a_cell_that_ends_an_interrupted_run_is_its_end_if_it_trains_on(
    training: SmallTraining,
    tmp_path: Path,
    notebook: FakeNotebook,
    *,
    ends_by: str,
    goes_on: bool,
    state: RunState,
) -> None:
    run = watch(training, tmp_path / "first")
    training.train(run.steps(training.loader))
    notebook.end_cell(KeyboardInterrupt())
    if goes_on:
        training.train(run.steps(training.loader))
    if ends_by == "close":
        run.close()
    with watch(training, tmp_path / "again"), log_of(tmp_path / "first") as log:
        assert log.run().state == state


def test_a_cell_that_fails_ends_the_run_that_it_trained_and_a_later_loop_says_so(
    training: SmallTraining, tmp_path: Path, notebook: FakeNotebook, capsys: pytest.CaptureFixture[str]
) -> None:
    run = watch(training, tmp_path)
    training.train(run.steps(training.loader))
    notebook.end_cell()
    notebook.end_cell(NameError("a cell that does not train"))
    assert list(run.steps([])) == []  # As one of which the first batch fails.
    notebook.end_cell(ValueError("no step 9"))
    assert notebook.after_cell == []
    with log_of(tmp_path) as log:
        assert (log.run().state, log.run().state_message) == (RunState.FAILED, "ValueError: no step 9")
    for _ in range(2):
        assert len(training.train(run.steps(training.loader))) == 8
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stepscope: This run has ended by the error of a cell")
