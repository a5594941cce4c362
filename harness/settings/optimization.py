"""Settings of the optimizer."""

from typing import Annotated

from pydantic import BaseModel, Field

from harness.settings.declaration import Effect, Group, Need, Optimizer, OptimizerImpl, Setting


class OptimizationSettings(BaseModel):
    """The optimizer."""

    optimizer: Annotated[
        Optimizer,
        Setting(
            "Optimizer",
            "Adam and AdamW store two more tensors per parameter than plain SGD.",
            Group.OPTIMIZATION,
            Effect.NEW_RUN,
            affects_prediction=True,
        ),
    ] = Optimizer.ADAMW
    optimizer_impl: Annotated[
        OptimizerImpl,
        Setting(
            "Optimizer kernels",
            "'foreach' batches the parameters, 'fused' runs the step in one kernel, 'loop' updates one by "
            "one.",
            Group.OPTIMIZATION,
            Effect.OPTIMIZER,
            advanced=True,
            short="optimizer",
            affects_prediction=True,
            trial_values=(OptimizerImpl.FOREACH, OptimizerImpl.FUSED),
        ),
    ] = OptimizerImpl.AUTO
    learning_rate: Annotated[
        float,
        Field(gt=0, le=1000),
        Setting(
            "Learning rate",
            "The optimizer's step size.",
            Group.OPTIMIZATION,
            Effect.NEXT_STEP,
            short="lr",
            affects_peak=False,
        ),
    ] = 1e-3
    learning_rate_factor: Annotated[
        float,
        Field(gt=0, le=1000),
        Setting(
            "Learning rate factor",
            "In a run of a script: multiplies the learning rates that the script sets, within each optimizer "
            "step only, so that its scheduler reads its own values.",
            Group.OPTIMIZATION,
            Effect.NEXT_STEP,
            short="lr factor",
            needs=Need.SCRIPT,
            affects_peak=False,
        ),
    ] = 1.0
