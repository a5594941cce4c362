"""The step that a remark of the script belongs to."""


class StepUnderWay:
    """The number of the step under way; between two steps, of the one that has ended.

    A script may log after `optimizer.step()` or before it. A step is under way once a batch was loaded,
    unless that batch is evaluated, or once a model was called for training.
    """

    def __init__(self) -> None:
        self._ended = 0
        self._is_under_way = False
        self._has_trained = False

    @property
    def number(self) -> int:
        """The number of the step; 1 before the first."""
        return self._ended + 1 if self._is_under_way else max(1, self._ended)

    @property
    def has_begun(self) -> bool:
        """Return whether anything of the step under way has happened."""
        return self._is_under_way

    def batch_arrived(self) -> None:
        """A batch was loaded."""
        self._is_under_way = True

    def forward_began(self, *, is_training: bool) -> None:
        """A model is called."""
        self._is_under_way = self._has_trained = is_training or self._has_trained

    def backward_began(self) -> None:
        """Gradients are about to be computed."""
        self._is_under_way = self._has_trained = True

    def step_ended(self, step: int) -> None:
        """The step has ended."""
        self._ended, self._is_under_way, self._has_trained = step, False, False
