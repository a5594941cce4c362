"""The adapters, with the real packages."""

import copy
from pathlib import Path
from typing import Any

import pytest

from harness.records.run import CommandKind, RunState
from tests.api_factories import SmallTraining, log_of, scalar, send, watch

_ENDLESS_STEPS = 100_000
# Lightning's own, with this torch.
_LIGHTNING_WARNINGS = (
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
)


@pytest.mark.slow
def test_a_hugging_face_trainer_has_its_steps_and_logs_and_the_bare_losses(tmp_path: Path) -> None:
    from stepscope.integrations import huggingface
    from tests.integration_factories import hugging_face_trainer

    bare = hugging_face_trainer(tmp_path / "bare", [], 5)
    bare.train()
    callback = huggingface.StepscopeCallback(home=tmp_path / "home")
    watched = hugging_face_trainer(tmp_path / "watched", [callback], 5)
    watched.train()
    assert copy.deepcopy(callback).run is callback.run
    losses = [entry["loss"] for entry in bare.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in watched.state.log_history if "loss" in entry] == losses
    assert [(step, loss) for step, loss in scalar(tmp_path / "home", "loss")] == list(enumerate(losses, 1))
    with log_of(tmp_path / "home") as log:
        assert [row.step for row in log.last_steps(100)] == [1, 2, 3, 4, 5]
        assert log.run().state == RunState.FINISHED


@pytest.mark.slow
def test_a_stop_ends_the_training_of_a_hugging_face_trainer(tmp_path: Path) -> None:
    from stepscope.integrations import huggingface
    from tests.integration_factories import hugging_face_trainer

    home = tmp_path / "home"

    class StopAtTwo(huggingface.StepscopeCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                send(home, CommandKind.STOP)

    trainer = hugging_face_trainer(tmp_path / "out", [StopAtTwo(home=home)], _ENDLESS_STEPS)
    trainer.train()
    assert trainer.state.global_step < _ENDLESS_STEPS
    with log_of(home) as log:
        assert log.run().state == RunState.STOPPED


@pytest.mark.slow
@_LIGHTNING_WARNINGS[0]
@_LIGHTNING_WARNINGS[1]
def test_a_lightning_trainer_has_its_steps_and_metrics_and_the_bare_losses(tmp_path: Path) -> None:
    from stepscope.integrations import lightning as lightning_integration
    from tests.integration_factories import Classifier, lightning_trainer

    bare, watched = Classifier(), Classifier()
    lightning_trainer([]).fit(bare, SmallTraining().loader)
    callback = lightning_integration.StepscopeCallback(home=tmp_path)
    lightning_trainer([callback]).fit(watched, SmallTraining().loader)
    assert copy.deepcopy(callback).run is callback.run
    assert watched.losses == bare.losses
    assert [loss for _, loss in scalar(tmp_path, "loss")] == bare.losses
    assert [step for step, _ in scalar(tmp_path, "train_loss")] == [8, 16]
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
        assert [(row.step, row.samples) for row in rows] == [(n, 8) for n in range(1, 17)]
        assert all(row.forward_ns > 0 for row in rows)
        assert log.run().state == RunState.FINISHED


@pytest.mark.slow
@_LIGHTNING_WARNINGS[0]
@_LIGHTNING_WARNINGS[1]
def test_the_batches_of_an_accumulated_step_count_from_lightnings_first_epoch_on(tmp_path: Path) -> None:
    from stepscope.integrations import lightning as lightning_integration
    from tests.integration_factories import Classifier, lightning_trainer

    callback = lightning_integration.StepscopeCallback(home=tmp_path)
    lightning_trainer([callback], batches_per_step=3).fit(Classifier(), SmallTraining().loader)
    with log_of(tmp_path) as log:
        assert [row.samples for row in log.last_steps(100)] == [24, 24, 16] * 2


@pytest.mark.slow
@_LIGHTNING_WARNINGS[0]
@_LIGHTNING_WARNINGS[1]
def test_an_error_in_lightning_is_the_outcome(tmp_path: Path) -> None:
    from stepscope.integrations import lightning as lightning_integration
    from tests.integration_factories import Classifier, lightning_trainer

    class Failing(Classifier):
        def training_step(self, batch: Any) -> Any:
            raise RuntimeError("No more coffee.")

    callback = lightning_integration.StepscopeCallback(home=tmp_path)
    with pytest.raises(RuntimeError, match="No more coffee"):
        lightning_trainer([callback]).fit(Failing(), SmallTraining().loader)
    with log_of(tmp_path) as log:
        assert log.run().state_message == "RuntimeError: No more coffee."


def test_an_accelerate_loop_has_its_steps_and_its_logs_are_scalars(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from stepscope.integrations import accelerate

    training = SmallTraining()
    bare = training.train()
    training = SmallTraining()
    accelerator = Accelerator(cpu=True, log_with=accelerate.StepscopeTracker())
    training.model, training.optimizer, training.loader = accelerator.prepare(
        training.model, training.optimizer, training.loader
    )
    losses = []
    with watch(training, tmp_path) as run:
        accelerator.init_trackers("project", {"lr": 0.1})
        for step, batch in enumerate(run.steps(training.loader)):
            loss = training.loss(batch)
            training.optimizer.zero_grad()
            accelerator.backward(loss)
            training.optimizer.step()
            losses.append(loss.item())
            accelerator.log({"train_loss": loss.item(), "note": "text"}, step=step)
        accelerator.end_training()
    assert losses == bare
    assert scalar(tmp_path, "train_loss") == list(enumerate(losses))
    with log_of(tmp_path) as log:
        assert [row.step for row in log.last_steps(100)] == list(range(1, 9))
        assert log.script.scalar_names() == ["train_loss"]


def test_trackers_that_are_initialized_again_log_into_the_run_of_that_training(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from stepscope.integrations import accelerate

    accelerator = Accelerator(cpu=True, log_with=accelerate.StepscopeTracker())
    for name in ("first", "second"):
        with watch(SmallTraining(), tmp_path / name):
            for step, project in enumerate(("warm-up", "main")):
                accelerator.init_trackers(project)
                accelerator.log({"train_loss": 0.5}, step=step)
                accelerator.end_training()
        assert scalar(tmp_path / name, "train_loss") == [(0, 0.5), (1, 0.5)]


def test_a_tracker_without_a_run_says_what_to_do() -> None:
    from stepscope.integrations import accelerate

    with pytest.raises(RuntimeError, match=r"call stepscope\.watch"):
        accelerate.StepscopeTracker().log({"loss": 1.0})
