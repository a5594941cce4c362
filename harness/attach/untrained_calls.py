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
    before had none: the rollouts of reinforcement learning before several updates. Where every step has some,
    they are a part of it.
    """

    def __init__(self, under_way: StepUnderWay, tracker: StepTracker) -> None:
        self._under_way, self._tracker = under_way, tracker
        self._step = 1
        self._calls = self._earlier_calls = _UNKNOWN_CALLS

    def add(self) -> bool:
        """Count a call; return whether there are many in the step under way."""
        step = self._under_way.ended + 1
        if step != self._step:
            self._earlier_calls = self._calls if step == self._step + 1 else 0
            self._step, self._calls = step, 0
        self._calls += 1
        return self._calls >= MANY_CALLS

    @property
    def are_evaluation(self) -> bool:
        """Return whether the calls so far belong to no step, at the call of a model that is trained."""
        tracker, under_way = self._tracker, self._under_way
        return (
            self._calls >= MANY_CALLS
            and not self._earlier_calls
            and self._step == under_way.ended + 1
            and not (under_way.has_trained or tracker.has_batch or tracker.is_updating)
        )
