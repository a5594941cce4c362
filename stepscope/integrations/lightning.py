"""The training of a Lightning Trainer: `Trainer(…, callbacks=[StepscopeCallback()])`."""

import os
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from stepscope.integrations.metrics import Metrics
from stepscope.run import Run, watch


class StepscopeCallback(pl.Callback):
    """Opens a run when the training begins, with the loss of each step and, at the end of each epoch, the
    metrics of `self.log` as scalars. Ends the training where a person stops the run.

    Attributes:
        run: the run; None before the training.
    """

    def __init__(self, *, name: str | None = None, home: str | os.PathLike[str] | None = None) -> None:
        """Arguments as for `stepscope.watch`."""
        self._name = name
        self._home = home
        self.run: Run | None = None
        self._metrics: Metrics | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the run, in the main process: before `on_train_start`, when the loader of the first epoch is
        open already, and its batches would not be seen."""
        if trainer.is_global_zero:
            self.run = watch(pl_module, trainer.optimizers, name=self._name, home=self._home)
            self._metrics = Metrics()
            self.run.handle_stop()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss, and end the training after a stop."""
        del pl_module, batch, batch_idx
        if self.run is None or self._metrics is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._metrics.log({"loss": loss})
        if self.run.is_stopped:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the metrics of the training."""
        del pl_module
        self._log_metrics(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the metrics of the validation, unless it is Lightning's trial before the training."""
        del pl_module
        if not trainer.sanity_checking:
            self._log_metrics(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the run."""
        del trainer, pl_module
        self._end(None)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """End the run by the error."""
        del trainer, pl_module
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        self._metrics = None
        if self.run is not None:
            self.run.close(error)

    def _log_metrics(self, trainer: pl.Trainer) -> None:
        if self._metrics is not None:
            self._metrics.log(trainer.callback_metrics)
