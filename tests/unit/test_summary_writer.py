"""`stepscope.SummaryWriter` in the place of TensorBoard's."""

import inspect
import os
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

import stepscope
from harness.records.run import EventKind, RunState
from tests.api_factories import SmallTraining, events, folder_of, log_of, scalar, watch


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


def test_a_summary_writer_writes_into_the_run(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        writer = stepscope.SummaryWriter()
        writer.add_scalar("Loss/train", torch.tensor(0.5), 100)
        writer.add_scalar("positional", 1.0, 7, 1.7e9, False, True)
        writer.add_scalars("lr", {"head": 0.1, "body": 0.01}, global_step=7)
        training.train(run.steps(training.loader))
        writer.add_scalar("plain", 2)
        writer.flush()
        writer.close()
    assert scalar(tmp_path, "Loss/train") == [(100, 0.5)]
    assert scalar(tmp_path, "positional") == [(7, 1.0)]
    assert (scalar(tmp_path, "lr/head"), scalar(tmp_path, "lr/body")) == ([(7, 0.1)], [(7, 0.01)])
    assert scalar(tmp_path, "plain") == [(8, 2.0)]


def test_after_close_numbers_are_recorded_as_by_tensorboard(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path):
        writer = stepscope.SummaryWriter()
        for epoch in range(3):
            writer.add_scalar("accuracy", epoch / 4, epoch)
            writer.close()
    assert scalar(tmp_path, "accuracy") == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_a_summary_writer_without_a_run_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"no run to write to; call stepscope\.watch"):
        stepscope.SummaryWriter()


def test_the_calls_are_those_of_tensorboard() -> None:
    """Also the order of the arguments and their defaults, for calls without names."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")

    def arguments(method: object) -> list[tuple[str, object, object]]:
        assert callable(method)
        parameters = inspect.signature(method).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    for name in ("__init__", "add_scalar", "add_scalars", "get_logdir", "flush", "close"):
        ours = arguments(getattr(stepscope.SummaryWriter, name))
        assert ours == arguments(getattr(tensorboard.SummaryWriter, name)), name
    theirs = {name for name in dir(tensorboard.SummaryWriter) if not name.startswith("_")}
    assert theirs - set(dir(stepscope.SummaryWriter)) == set()


def test_what_is_not_recorded_is_one_warning_per_method(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        first = stepscope.SummaryWriter(comment="_LR_0.1", flush_secs=30)
        for batch in run.steps(training.loader):
            training.step(batch)
            for writer in (first, stepscope.SummaryWriter(max_queue=1)):
                writer.add_graph(training.model, torch.zeros(1, 4))
                writer.add_histogram("weights", torch.randn(10), 1, bins="auto")
                writer.add_hparams({"lr": 0.1}, {"accuracy": 0.5})
    labels = [(event.label, event.message.split()[0]) for event in events(tmp_path, EventKind.WARNING)]
    assert labels == [
        ("not recorded", f"SummaryWriter.{name}") for name in ("add_graph", "add_histogram", "add_hparams")
    ]
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.FINISHED
        assert len(log.last_steps(100)) == 8


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (0.0, 0),
        (np.float64(3.0), 3),
        (np.int32(4), 4),
        (torch.tensor(5), 5),
        (torch.tensor([6.0]), 6),
        (7.75, 7),
        ("8", 8),
        (True, 1),
    ],
)
def test_a_step_is_converted_as_tensorboard_does(
    training: SmallTraining, tmp_path: Path, step: object, number: int
) -> None:
    with watch(training, tmp_path):
        stepscope.SummaryWriter().add_scalar("loss", 0.5, step)
    assert scalar(tmp_path, "loss") == [(number, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2**63, float("nan"), float("inf"), "three", torch.zeros(2)])
def test_a_step_that_no_log_can_have_is_refused(
    training: SmallTraining, tmp_path: Path, step: object
) -> None:
    with watch(training, tmp_path):
        writer = stepscope.SummaryWriter()
        with pytest.raises(ValueError, match=r"global_step cannot be .*; give a whole number from 0 to 2"):
            writer.add_scalar("loss", 0.5, step)
        writer.add_scalar("loss", 0.5, 2**63 - 1)
    with log_of(tmp_path) as log:
        assert log.script.last_scalar("loss") == (2**63 - 1, 0.5)


def test_what_is_no_number_is_refused_and_a_name_or_step_beyond_the_limits_is_left_out(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path):
        writer = stepscope.SummaryWriter()
        with pytest.raises(
            ValueError, match="tag_scalar_dict cannot be list; give a dict of tags and numbers"
        ):
            writer.add_scalars("m", [1])
        with pytest.raises(ValueError, match="loss cannot be 'low'; log numbers"):
            writer.add_scalar("loss", "low")
        writer.add_scalars("layer" * 40, {"weight": 0.5, "bias": 0.5}, 1)
        writer.add_scalar("loss", 0.75, -1)
        writer.add_scalar("loss", 0.5, 1)
    of_name, of_step = events(tmp_path, EventKind.WARNING)
    assert "cannot name a scalar; use printable text of up to 200 letters" in of_name.message
    assert "step cannot be -1" in of_step.message
    assert scalar(tmp_path, "loss") == [(1, 0.5)]


def test_texts_of_numbers_are_numbers_as_for_tensorboard(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path):
        writer = stepscope.SummaryWriter()
        writer.add_scalar("text", f"{0.5:.3f}", 1)
        writer.add_scalar("decimal", Decimal("0.5"), 1)
        writer.add_scalars("bytes", {"one": b"0.5"}, 1)
    for name in ("text", "decimal", "bytes/one"):
        assert scalar(tmp_path, name) == [(1, 0.5)]


def test_files_of_the_script_go_to_the_given_folder_or_to_that_of_the_run(
    training: SmallTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with watch(training, tmp_path / "home"):
        writer = stepscope.SummaryWriter()
        assert writer.log_dir == writer.get_logdir() == str(folder_of(tmp_path / "home").path)
        given = stepscope.SummaryWriter(Path("runs") / "exp1")
        (Path(given.get_logdir()) / "weights.pt").touch()
        assert stepscope.SummaryWriter("s3://bucket/exp1").log_dir == "s3://bucket/exp1"
        stepscope.SummaryWriter("file/exp1").add_scalar("loss", 0.5, 1)
    assert given.log_dir == os.path.join("runs", "exp1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "home", "runs"]
    assert scalar(tmp_path / "home", "loss") == [(1, 0.5)]


def test_a_deleted_folder_of_a_run_is_not_created_again(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path):
        folder = folder_of(tmp_path).path
        shutil.rmtree(folder)
        stepscope.SummaryWriter().add_scalar("loss", 0.5, 1)
        assert not folder.exists()


def test_disabled_a_summary_writer_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_DISABLED", "1")
    monkeypatch.chdir(tmp_path)
    with stepscope.SummaryWriter(comment="_1") as writer:
        writer.add_scalar("loss", 0.5, 1)
        writer.add_text("note", "text")
        assert writer.log_dir == "."
    assert list(tmp_path.iterdir()) == []
