"""Gradients that a script drops, as with `if norm > limit: optimizer.zero_grad(); continue`."""

from harness.attach.feeding import Feeding
from harness.attach.step_sizes import StepSizes
from harness.attach.tracker import StepTracker
from harness.attach.training import ScriptTraining
from harness.attach.usual import Usual


class DroppedGradients:
    """Takes batches out of a step if their gradients are no part of its update.

    Gradients are dropped where a further backward pass begins for other inputs, no optimizer has stepped
    since the one before, and no parameter has a gradient. The time stays in the step, unless the batches are
    of a pass that was opened since the last step, and the next batch is of another one: as where Fisher
    information is computed between two trainings. Where half of the steps or more clear gradients like that,
    the script keeps them elsewhere, as to clip those of each sample. Steps that drop nothing but the last
    batches of a pass, which make no full step, are not among these, unless several loaders feed the training.
    """

    def __init__(
        self, training: ScriptTraining, sizes: StepSizes, tracker: StepTracker, feeding: Feeding
    ) -> None:
        self._training, self._sizes, self._tracker, self._feeding = training, sizes, tracker, feeding
        self._clearing = Usual()

    def further_pass_begins(self, step: int) -> None:
        """A backward pass of `step` begins, and no optimizer has stepped since the one before it. Flat, as
        each micro-batch but the first has one."""
        sizes = self._sizes
        if not (sizes.has_new_batch or sizes.has_other_inputs):
            return
        for reference in list(self._training.references.values()):
            for group in () if (optimizer := reference()) is None else optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        return
        trained = sizes.trained_pass
        is_tail = trained is not None and self._feeding.is_left(trained.batches)
        if self._clearing.is_usual(step, is_noted=not is_tail):
            return
        self._tracker.add_samples(-sizes.drop())
        if trained is not None and self._feeding.drop(*trained):
            self._tracker.leave_out_dropped()
