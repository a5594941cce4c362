"""The training of a Hugging Face Trainer: `Trainer(…, callbacks=[StepscopeCallback()])`."""

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stepscope.integrations.metrics import Metrics
from stepscope.run import Run, watch


class StepscopeCallback(TrainerCallback):
    """Opens a run when the training begins, with the Trainer's logs as scalars, and ends the training where a
    person stops the run.

    Attributes:
        run: the run; None before the training.
    """

    def __init__(self, *, name: str | None = None, home: str | os.PathLike[str] | None = None) -> None:
        """Arguments as for `stepscope.watch`."""
        self._name = name
        self._home = home
        self.run: Run | None = None
        self._metrics: Metrics | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Open the run, in the main process."""
        del args, control, kwargs
        if state.is_world_process_zero:
            self.run = watch(model, optimizer, name=self._name, home=self._home)
            self._metrics = Metrics()
            self.run.handle_stop()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the training after a stop."""
        del args, state, kwargs
        if self.run is not None and self.run.is_stopped:
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the numbers among the logs at the newest step, as far as they can be."""
        del args, state, control, kwargs
        if self._metrics is not None and logs:
            self._metrics.log(logs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the run."""
        del args, state, control, kwargs
        self._metrics = None
        if self.run is not None:
            self.run.close()
