"""The public package: a run over a training of one's own, in this process."""

import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import stepscope
from harness.errors import SettingError, UsageError
from harness.records.run import CommandKind, EventKind, RunState
from harness.records.script import SettingKind
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.api_factories import (
    ENOUGH_STEPS,
    SmallTraining,
    events,
    log_of,
    scalar,
    send,
    settings,
    watch,
)


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


def test_a_watched_training_has_the_losses_of_a_bare_one_and_leaves_torch_as_it_was(tmp_path: Path) -> None:
    patched = _patched()
    bare, watched = SmallTraining().train(), SmallTraining()
    with watch(watched, tmp_path) as run:
        assert watched.train(run.steps(watched.loader)) == bare
    assert _patched() == patched
    assert not hasattr(sys.exit, "__wrapped__")
    assert type(watched.model).__call__ is torch.nn.Module.__call__
    with log_of(tmp_path) as log:
        assert [(row.step, row.samples) for row in log.last_steps(100)] == [(n, 8) for n in range(1, 9)]
        assert [row.loss for row in log.last_steps(100)] == pytest.approx(bare)
        assert log.run().state == RunState.FINISHED


def _patched() -> tuple[object, ...]:
    return DataLoader.__iter__, torch.autograd.backward, sys.excepthook, threading.excepthook


def test_an_error_in_the_block_is_the_outcome_and_goes_on_up(training: SmallTraining, tmp_path: Path) -> None:
    def pour(batch: object) -> object:
        if batch == 3:
            raise RuntimeError("No more coffee.")
        return batch

    def train() -> None:
        with watch(training, tmp_path) as run:
            list(run.steps(map(pour, range(8))))

    with pytest.raises(RuntimeError, match="No more coffee"):
        train()
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.FAILED
        assert log.run().state_message == "RuntimeError: No more coffee."
    (event,) = events(tmp_path, EventKind.ERROR)
    begin, *frames, message = json.loads(event.detail)["last_lines"]
    assert begin.startswith("Traceback")
    assert [line.partition(", in ")[2].partition("\n")[0] for line in frames] == ["train", "pour"]
    assert message == "RuntimeError: No more coffee.\n"


def test_ctrl_c_in_the_block_stops_the_run(training: SmallTraining, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), watch(training, tmp_path):
        raise KeyboardInterrupt
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED


def test_a_second_watch_ends_the_first(training: SmallTraining, tmp_path: Path) -> None:
    first = watch(training, tmp_path, "first")
    training.train()
    with watch(SmallTraining(), tmp_path, "second"):
        first.log(loss=1.0)
    ends = {}
    for folder in Home(tmp_path).runs():
        with LogReader(folder.log) as log:
            ends[folder.request().name] = (log.run().state, log.run().state_message, len(log.last_steps(9)))
    assert ends["first"] == (RunState.FINISHED, "The next stepscope.watch ended this run after 8 steps.", 8)
    assert ends["second"][::2] == (RunState.FINISHED, 0)


@pytest.mark.parametrize("name", ["mine", "x" * 200])
def test_a_name_that_is_taken_gets_a_number(training: SmallTraining, tmp_path: Path, name: str) -> None:
    names = []
    for _ in range(3):
        with watch(training, tmp_path, name) as run:
            training.train()
            names.append(run.name)
    assert names == [name, f"{name[:190]}-2", f"{name[:190]}-3"]
    with pytest.raises(UsageError, match="cannot be named"):
        watch(training, tmp_path, "\x1b[31m")


def test_disabled_nothing_is_recorded_or_patched(
    training: SmallTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_DISABLED", "1")
    backward = torch.autograd.backward
    with watch(training, tmp_path) as run, stepscope.SummaryWriter() as writer:
        assert torch.autograd.backward is backward
        dropout = run.setting("dropout", 0.1, bounds=(0, 0.9))
        for batch in run.steps(training.loader):
            with run.phase("augment"), run.autocast():
                loss = training.step(batch)
            run.log(loss=loss)
            writer.add_scalar("loss", loss, 1)
        run.event("done")
        assert (dropout(), run.name, run.is_stopped) == (0.1, "", False)
    assert Home(tmp_path).runs() == []


def test_a_setting_that_is_not_called_is_no_condition(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        mode = run.setting("mode", "fast", choices=["fast", "exact"])
        is_on = run.setting("is_on", False)
        with pytest.raises(TypeError, match="The setting 'is_on' is not its value: call it, as in setting"):
            print("on" if is_on else "off")
        with pytest.raises(TypeError, match="The setting 'mode' is not its value"):
            print(mode == "exact")
        with pytest.raises(TypeError, match="The setting 'mode' is not its value"):
            print(mode != "exact")
        assert mode in {mode, is_on}
        assert (mode(), is_on()) == ("fast", False)


def test_what_is_no_model_or_optimizer_is_refused(training: SmallTraining, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model cannot be str; give a torch\.nn\.Module"):
        stepscope.watch("model", training.optimizer, home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"optimizer cannot be float; give a torch\.optim\.Optimizer"):
        stepscope.watch(training.model, 0.1, home=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameters to train"):
        stepscope.watch(torch.nn.ReLU(), training.optimizer, home=tmp_path)
    with pytest.raises(ValueError, match="The name of a run cannot be 5; give text, or none"):
        watch(training, tmp_path, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="The home of runs cannot be 5; give the path of a folder"):
        watch(training, 5)  # type: ignore[arg-type]
    assert Home(tmp_path).runs() == []


def test_a_stop_ends_the_loop_over_the_steps_and_the_run(training: SmallTraining, tmp_path: Path) -> None:
    run = watch(training, tmp_path)
    send(tmp_path, CommandKind.STOP)
    training.train_until(run, lambda: False)
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED
    assert run.is_stopped
    assert list(run.steps([1, 2])) == []  # As the next epoch of a run that is not over yet.


def test_a_stop_within_an_iteration_of_several_steps_is_not_lost(
    training: SmallTraining, tmp_path: Path
) -> None:
    run = watch(training, tmp_path)
    send(tmp_path, CommandKind.STOP)
    for number in run.steps(range(ENOUGH_STEPS)):
        for batch in training.loader:
            training.step(batch)
        assert number < ENOUGH_STEPS - 1
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED


def test_any_iterable_has_steps_whose_data_wait_is_measured(training: SmallTraining, tmp_path: Path) -> None:
    took_ns: list[int] = []

    def slow() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in training.loader:
            began_ns = time.perf_counter_ns()
            torch.randn(20_000).sort()
            took_ns.append(time.perf_counter_ns() - began_ns)
            yield batch

    with watch(training, tmp_path) as run:
        training.train(run.steps(slow()))
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
    assert len(rows) == 8
    assert [row.samples for row in rows] == [8] * 8
    assert all(row.data_wait_ns > one_ns for row, one_ns in zip(rows, took_ns, strict=True))


def test_numbers_are_kept_at_their_step_whether_logged_before_or_after_it_ends(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path) as run:
        for number, batch in enumerate(run.steps(training.loader), start=1):
            run.log(before=number)
            loss = training.step(batch)
            run.log({"after/a": number}, loss=loss, spike=math.inf if number == 5 else 1)
    assert scalar(tmp_path, "before") == [(n, float(n)) for n in range(1, 9)]
    assert scalar(tmp_path, "after/a") == [(n, float(n)) for n in range(1, 9)]
    with log_of(tmp_path) as log:
        losses = [row.loss for row in log.last_steps(100)]
        assert [value for _, value in scalar(tmp_path, "loss")] == pytest.approx(losses)
        (spike,) = [row for row in log.script.scalars("spike", 1, 8, 100) if row.not_finite]
    assert spike.first_step == 5


def test_numbers_after_an_evaluation_belong_to_the_step_before(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path) as run:
        for batch in run.steps(training.loader):
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            for batch in training.loader:
                training.loss(batch)
        run.log(accuracy=0.75)
    assert scalar(tmp_path, "accuracy") == [(8, 0.75)]


def test_a_loss_logged_within_the_step_is_the_loss_of_the_step(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path) as run:
        for number, batch in enumerate(run.steps(training.loader)):
            training.loss(batch).backward()
            if number < 2:
                run.log(loss=torch.tensor(100.0 + number))
            training.optimizer.step()
    with log_of(tmp_path) as log:
        losses = [row.loss for row in log.last_steps(100)]
    assert losses[:2] == [100.0, 101.0]
    assert all(loss is not None and loss < 10 for loss in losses[2:])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array([2]), 2.0),
        (torch.tensor([[3]]), 3.0),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (10**400, None),
    ],
)
def test_numbers_of_any_kind_are_logged(
    training: SmallTraining, tmp_path: Path, value: object, number: float | None
) -> None:
    with watch(training, tmp_path) as run:
        run.log(value=value)
    assert scalar(tmp_path, "value") == [(1, number)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"accuracy": "high"}, "accuracy cannot be 'high'; log numbers"),
        ({"logits": torch.zeros(3, 4)}, r"logits cannot be a tensor of torch.float32 and shape \(3, 4\)"),
        ({"phase": torch.tensor(1j)}, "phase cannot be a tensor of torch.complex64"),
        ({"nothing": None}, "nothing cannot be None"),
        ({"waited": np.timedelta64(3, "s")}, "waited cannot be (np|numpy).timedelta64"),
        ([("loss", 0.5)], "values cannot be list; give a dict of names and numbers."),
        ({"": 1}, "'' cannot name a scalar"),
        ({"a\nb": 1}, r"'a\\nb' cannot name a scalar"),
    ],
)
def test_what_is_no_number_is_refused_by_name_and_value(
    training: SmallTraining, tmp_path: Path, values: Any, message: str
) -> None:
    with watch(training, tmp_path) as run:
        with pytest.raises(ValueError, match=message):
            run.log(values)
        training.train(run.steps(training.loader))
    with log_of(tmp_path) as log:
        assert len(log.last_steps(100)) == 8


def test_a_phase_is_a_scalar_that_adds_up_over_the_step(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        for batch in run.steps(training.loader):
            for _ in range(2):
                with run.phase("augment"):
                    torch.randn(100_000).sort()
            training.step(batch)
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
    phases = scalar(tmp_path, "phase/augment")
    assert [step for step, _ in phases] == [row.step for row in rows]
    assert all(0 < ms * 1e6 < row.step_ns for (_, ms), row in zip(phases, rows, strict=True) if ms)


@pytest.mark.parametrize("name", ["x" * 195, "a\nb", "", None])
def test_a_phase_that_no_scalar_can_be_named_after_is_refused_at_the_call(
    training: SmallTraining, tmp_path: Path, name: Any
) -> None:
    with watch(training, tmp_path) as run:
        with pytest.raises(ValueError, match="cannot name a phase; use printable text of up to 194 letters"):
            run.phase(name)
        with run.phase("x" * 194):
            training.train(run.steps(training.loader))
        for number in range(999):
            run.log({f"{number}": 0.5})
        with pytest.raises(ValueError, match="'phase/late' would be scalar number 1,001"):
            run.phase("late")


def test_an_event_of_the_script_stands_at_its_step(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        training.train(run.steps(training.loader))
        run.event("checkpoint saved\nto disk")
        with pytest.raises(ValueError, match="An event cannot be ''"):
            run.event("")
    (event,) = events(tmp_path, EventKind.NOTE)
    assert (event.step, event.label) == (8, "checkpoint saved to disk")


@pytest.mark.slow
def test_a_setting_of_the_script_changes_live_with_version_event_and_answer(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path) as run:
        dropout = run.setting("dropout", 0.1, bounds=(0, 0.9))
        assert dropout() == 0.1
        training.train_until(run, lambda: folder_has_version(tmp_path, 2))
        with pytest.raises(SettingError, match=r"dropout cannot be 0\.95; it is a number from 0 to 0.9"):
            send(tmp_path, CommandKind.SET, dropout=0.95)
        with pytest.raises(SettingError, match="no setting 'dropuot'"):
            send(tmp_path, CommandKind.SET, dropuot=0.3)
        command = send(tmp_path, CommandKind.SET, dropout="0.3", amp="bf16")
        training.train_until(run, lambda: dropout() == 0.3)
        training.train(run.steps(training.loader))
    (setting,) = [one for one in events(tmp_path, EventKind.SETTING) if "dropout" in one.label]
    assert (setting.label, setting.message) == ("dropout 0.3", "dropout 0.1 → 0.3.")
    assert settings(tmp_path)[-1] | {"dropout": 0.3, "amp": "bf16"} == settings(tmp_path)[-1]
    with log_of(tmp_path) as log:
        (answer,) = [ack for ack in log.acks() if ack.command_id == command]
        assert answer.state == "applied"
        assert answer.message.endswith("dropout 0.1 → 0.3.")
        (declared,) = log.script.declared_settings()
        assert (declared.kind, declared.low, declared.high) == (SettingKind.FLOAT, 0, 0.9)
        assert log.last_steps(1)[0].settings_version == len(settings(tmp_path))


def folder_has_version(home: Path, version: int) -> bool:
    """Whether the declaration has been written."""
    with log_of(home) as log:
        return len(log.settings_history()) >= version


@pytest.mark.parametrize(
    ("name", "default", "options", "message"),
    [
        ("batch_size", 8, {}, "'batch_size' is a setting of Stepscope"),
        ("drop out", 0.1, {}, "'drop out' cannot name a setting"),
        ("dropout", 1.5, {"bounds": (0, 0.9)}, "dropout cannot be 1.5; it is a number from 0 to 0.9"),
        (
            "dropout",
            0.1,
            {"bounds": (0.9, 0)},
            r"cannot have the bounds \(0.9, 0\); give the lower one first",
        ),
        ("mode", "fast", {}, "mode cannot be 'fast'; give a number"),
        ("mode", "fast", {"choices": ["slow"]}, "mode cannot be 'fast'; it is one of slow"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    training: SmallTraining,
    tmp_path: Path,
    name: str,
    default: float | str,
    options: dict[str, Any],
    message: str,
) -> None:
    with watch(training, tmp_path) as run, pytest.raises(ValueError, match=message):
        run.setting(name, default, **options)


def test_autocast_follows_the_amp_setting(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        with run.autocast():
            assert not torch.is_autocast_enabled("cpu")
        send(tmp_path, CommandKind.SET, amp="bf16")

        def is_cast() -> bool:
            with run.autocast():
                return torch.is_autocast_enabled("cpu")

        training.train_until(run, is_cast)
