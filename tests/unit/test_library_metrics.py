"""Metrics of other libraries end no training: what cannot be recorded is left out with a warning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.records.run import EventKind, RunState
from stepscope.integrations.metrics import Metrics
from tests.api_factories import SmallTraining, events, log_of, scalar, watch

# Lightning's own, with this torch.
_LIGHTNING_WARNINGS = (
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
)
_CLASSES = 1_001


def warnings(home: Path) -> list[str]:
    return [event.message for event in events(home, EventKind.WARNING)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "step", "reason"),
    [
        ({"x" * 201: 1.0}, None, "… cannot name a scalar; use printable text of up to 200 letters."),
        ({"f1\nmacro": 1.0}, None, r"'f1\nmacro' cannot name a scalar"),
        ({"\ud800": [1]}, None, r"\ud800 cannot be [1]; log numbers"),
        ({5: 0.1}, None, "5 cannot name a scalar"),
        ({"confusion": torch.zeros(3, 3)}, None, "a tensor of torch.float32 and shape (3, 3)"),
        ({"nothing": None}, None, "nothing cannot be None; log numbers"),
        ({"lr": 0.1}, -1, "step cannot be -1; give a whole number from 0 to 2**63 - 1, or none."),
        ({"lr": 0.1}, 2**63, "step cannot be 9223372036854775808; give a whole number from 0"),
        ({"lr": 0.1}, 1.5, "step cannot be 1.5; give a whole number from 0"),
        ({"lr": 0.1}, "first", "step cannot be 'first'; give a whole number from 0"),
    ],
)
def test_what_cannot_be_recorded_is_left_out_with_one_warning(
    tmp_path: Path, values: dict[Any, object], step: object, reason: str
) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        metrics = Metrics()
        for batch in run.steps(training.loader):
            training.step(batch)
            metrics.log({"accuracy": 0.5, "note": "a text", **values} if step is None else values, step)
            metrics.log({"recall": 0.25})
    assert [reason in message for message in warnings(tmp_path)] == [True]
    assert scalar(tmp_path, "accuracy") == ([] if step is not None else [(n, 0.5) for n in range(1, 9)])
    assert scalar(tmp_path, "recall") == [(n, 0.25) for n in range(1, 9)]
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.FINISHED


def test_each_reason_has_a_warning_of_its_own(tmp_path: Path) -> None:
    with watch(SmallTraining(), tmp_path):
        metrics = Metrics()
        metrics.log({"list": [1], "": 1, "lr": np.float32(0.5)}, np.float64(3.0))
        metrics.log({"dict": {"a": 1}, "\t": 1}, torch.tensor(4))
    assert len(warnings(tmp_path)) == 2
    assert scalar(tmp_path, "lr") == [(3, 0.5)]


def test_names_beyond_the_limit_are_left_out_and_the_advice_fits_them(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        training.train(run.steps(training.loader))
        metrics = Metrics()
        for _ in range(2):
            metrics.log({f"f1_class_{number}": 0.5 for number in range(_CLASSES)})
        metrics.log({"f1_class_0": 0.75})
        with pytest.raises(ValueError, match=r"'mean' would be scalar number 1,001"):
            run.log(mean=0.5)
    (message,) = warnings(tmp_path)
    assert message == (
        "'f1_class_1000' would be scalar number 1,001; a run has scalars of up to 1,000 names: log fewer of "
        "them, such as the mean of a group. It is left out, and so is what else cannot be recorded for this "
        "reason."
    )
    assert scalar(tmp_path, "f1_class_0") == [(8, 0.75)]
    with log_of(tmp_path) as log:
        assert len(log.script.scalar_names()) == 1_000


def test_names_from_before_the_training_count(tmp_path: Path) -> None:
    from tests.attach_factories import attached, recorded

    training = SmallTraining()
    with attached(tmp_path) as (session, folder, _):
        session.remarks.log_possible({f"early/{number}": 0.5 for number in range(_CLASSES)})
        training.train()
        session.remarks.log_possible({"late": 0.5, "early/0": 0.75})
    (warning,) = [event for event in recorded(folder).events if event.kind == EventKind.WARNING]
    assert warning.message.startswith("'early/1000' would be scalar number 1,001")
    assert scalar(tmp_path, "early/0") == [(1, 0.5), (8, 0.75)]
    assert scalar(tmp_path, "late") == []


def test_a_tensor_that_torch_refuses_to_read_is_left_out(tmp_path: Path) -> None:
    with watch(SmallTraining(), tmp_path):
        metrics = Metrics()

        def doubled(value: torch.Tensor) -> torch.Tensor:
            metrics.log({"inner": value})
            return 2 * value

        torch.vmap(doubled)(torch.ones(3))
    (message,) = warnings(tmp_path)
    assert "inner cannot be a tensor that cannot be read (vmap: " in message


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_of_an_error_that_lists_all_of_torch_the_beginning_is_shown(tmp_path: Path) -> None:
    with watch(SmallTraining(), tmp_path) as run:
        nested = torch.nested.nested_tensor([torch.ones(1)])
        with pytest.raises(ValueError, match="cannot be a tensor that cannot be read") as refused:
            run.log(ragged=nested)
    assert len(str(refused.value)) < 320


def test_a_warning_from_before_the_training_is_written_when_it_begins(tmp_path: Path) -> None:
    from tests.attach_factories import attached, recorded

    training = SmallTraining()
    with attached(tmp_path) as (session, folder, _):
        session.remarks.log_possible({"list": [1]}, None)
        training.train()
    assert [event.label for event in recorded(folder).events if event.kind == EventKind.WARNING] == [
        "scalars left out"
    ]


@pytest.mark.long
def test_a_hugging_face_training_with_a_metric_per_class_goes_on(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from stepscope.integrations.huggingface import StepscopeCallback
    from tests.integration_factories import hugging_face_trainer

    class LogsClasses(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            values: dict[Any, Any] = {f"f1_class_{number}": 0.5 for number in range(_CLASSES)}
            trainer.log(values | {5: torch.ones(2)})

    callbacks = [StepscopeCallback(home=tmp_path / "home"), LogsClasses()]
    trainer = hugging_face_trainer(tmp_path / "out", callbacks, 3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert sorted("1,001" in message for message in warnings(tmp_path / "home")) == [False, True]
    assert [step for step, _ in scalar(tmp_path / "home", "f1_class_7")] == [1, 2, 3]


@pytest.mark.long
@_LIGHTNING_WARNINGS[0]
@_LIGHTNING_WARNINGS[1]
def test_a_lightning_training_with_a_metric_per_class_goes_on(tmp_path: Path) -> None:
    from stepscope.integrations.lightning import StepscopeCallback
    from tests.integration_factories import Classifier, lightning_trainer

    class PerClass(Classifier):
        def training_step(self, batch: Any) -> Any:
            self.log_dict({f"acc/class {number}": 0.5 for number in range(_CLASSES)})
            return super().training_step(batch)

    module = PerClass()
    lightning_trainer([StepscopeCallback(home=tmp_path)]).fit(module, SmallTraining().loader)
    assert ["1,001" in message for message in warnings(tmp_path)] == [True]
    assert [loss for _, loss in scalar(tmp_path, "loss")] == module.losses
    assert [step for step, _ in scalar(tmp_path, "acc/class 0")] == [8, 16]


def test_an_accelerate_tracker_leaves_out_what_cannot_be_recorded(tmp_path: Path) -> None:
    from stepscope.integrations.accelerate import StepscopeTracker

    with watch(SmallTraining(), tmp_path):
        tracker = StepscopeTracker()
        tracker.log({"loss": 0.5}, -1)
        tracker.log({"loss": 0.5, "logits": torch.zeros(2)}, 2)
        tracker.finish()
        tracker.log({"loss": 0.25}, 3)
    assert len(warnings(tmp_path)) == 2
    assert scalar(tmp_path, "loss") == [(2, 0.5)]
