"""The calls of models between two steps of a script that are not for training, as of an agent that acts."""

from harness.attach.numbering import StepUnderWay
from harness.attach.tracker import StepTracker

# Fewer calls may as well compute a target of the step.
MANY_CALLS = 8
# Of the first step: its beginning was not followed, and it may have had some.
_UNKNOWN_CALLS = 1


class UntrainedCalls:
    """Counts the calls of models without gradients, in evaluation mode, or of a copy that is not trained.

    Without the batch of a loader, many of them before the first call that trains are evaluation if the step
    before had none: the rollouts of reinforcement learning before several updates. Where a batch follows, any
    of them are: samples drawn from an average of the weights. Where every step has some, they are part of it.
    """

    def __init__(self, under_way: StepUnderWay, tracker: StepTracker) -> None:
        self._under_way, self._tracker = under_way, tracker
        self._step = 1
        self._calls = self._earlier_calls = _UNKNOWN_CALLS

    def add(self) -> bool:
        """Count a call; return whether there are many in the step under way, or it is between two steps."""
        step = self._under_way.ended + 1
        if step != self._step:
            self._earlier_calls = self._calls if step == self._step + 1 else 0
            self._step, self._calls = step, 0
        self._calls += 1
        return self._calls >= MANY_CALLS or self.are_between_steps

    @property
    def are_evaluation(self) -> bool:
        """Return whether the calls so far belong to no step, at the call of a model that is trained."""
        return self._calls >= MANY_CALLS and self.are_between_steps

    @property
    def are_after_batch(self) -> bool:
        """Return whether there were calls since the batch of the step under way, the step before had none,
        and nothing was trained in it so far."""
        is_first = not self._earlier_calls and self._step == self._under_way.ended + 1
        return is_first and self._tracker.has_batch and not self._under_way.has_trained

    @property
    def are_between_steps(self) -> bool:
        """Return whether there were calls since the last step ended, the step before had none, and nothing of
        the next one has happened."""
        tracker, under_way = self._tracker, self._under_way
        return (
            not self._earlier_calls
            and self._step == under_way.ended + 1
            and not (under_way.has_trained or tracker.has_batch or tracker.is_updating)
        )
