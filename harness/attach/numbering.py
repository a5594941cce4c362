"""The step that a remark of the script belongs to."""

from torch import Tensor

# They show which loaders feed the training.
FIRST_STEPS = 2
# The number of events so far: of a step in which a batch was requested, has arrived, and so on.
ARRIVED, CALLED, RETURNED, GRADIENTS_BEGAN, GRADIENTS_ENDED, UPDATE_BEGAN = range(2, 8)


class StepUnderWay:
    """The number of the step under way; between two steps, of the one that has ended.

    A script may log after `optimizer.step()` or before it. A step is under way once a batch was loaded,
    unless that batch is evaluated, or once a model was called for training.

    Attributes:
        ended: the number of the last step that has ended.
        has_begun: whether anything of the step under way has happened, unless it is a plain one.
        has_trained: whether a model was called for training in it.
        is_plain: whether it is expected to be a plain one, as far as it has come.
        times_ns: the times of its events so far, if it is a plain one (`harness.attach.plain_step`).
        logged_loss: the loss of the step under way that the script logs, in place of that of backward.
    """

    __slots__ = ("ended", "has_begun", "has_trained", "is_plain", "logged_loss", "times_ns")

    def __init__(self) -> None:
        self.ended = 0
        self.has_begun = False
        self.has_trained = False
        self.is_plain = False
        self.times_ns: list[int] = []
        self.logged_loss: float | Tensor | None = None

    @property
    def is_begun(self) -> bool:
        """Return whether anything of the step under way has happened."""
        return self.has_begun or len(self.times_ns) >= ARRIVED

    @property
    def number(self) -> int:
        """The number of the step; 1 before the first."""
        return self.ended + 1 if self.is_begun else max(1, self.ended)

    def forward_began(self, *, is_training: bool) -> None:
        """A model is called."""
        self.has_begun = self.has_trained = is_training or self.has_trained
