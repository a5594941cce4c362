"""The batches that a script skips before it calls its model, as with `if len(inputs) < 2: continue`."""

from harness.attach.left_batches import LeftBatches, UnusedBatch
from harness.attach.numbering import FIRST_STEPS


class SkippedBatches:
    """Finds the skipped batches of a step.

    A batch is skipped where the script loads another one of the same loader before it calls the model, with
    as many samples as that one has, and no further call follows for it: a script may load several batches at
    once. Where more than two thirds of the calls are after several batches, each call may be for all of them.
    """

    def __init__(self, left: LeftBatches) -> None:
        """`left` has the batches before each call."""
        self._left = left
        # The samples of those batches of the step that no call was for so far.
        self._samples: list[int] = []
        # Since the first step: calls after several batches, calls after any, and the steps that those are in.
        self._several_calls = self._calls = self._steps = 0
        # The batches before the newest call that was after any.
        self._taken: list[UnusedBatch] = []

    def model_called(self, samples: int | None, *, repeats_input: bool) -> None:
        """The first model of the step is called with so many samples. `repeats_input` is whether they are
        those of the call before."""
        taken, before = self._left.taken, self._taken
        if not taken or taken is before:
            if self._samples and not repeats_input:
                self._samples.pop()
            return
        self._taken = taken
        self._calls += 1
        if len(taken) == 1:
            return
        loaders = {id(batches.loader) for batch in taken if (batches := batch.batches()) is not None}
        if len(loaders) <= 1:
            self._several_calls += 1
            if samples == taken[-1].samples:
                self._samples += [batch.samples for batch in taken[:-1]]

    def leave_out(self, loaded: int | None, step: int) -> int | None:
        """Return `loaded`, the samples of the batches of `step`, which ends, without the skipped ones."""
        if self._samples:
            plain_steps = step - 2 - self._steps  # Of those before, without the first.
            is_rare = 3 * self._several_calls <= 2 * (self._calls + plain_steps)
            if loaded is not None and step > FIRST_STEPS and is_rare:
                loaded -= sum(self._samples)
            self._samples.clear()
        if step == 1:
            self._several_calls = self._calls = 0
        else:
            self._steps += 1
        return loaded
