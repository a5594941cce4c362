"""The batches that a script skips before it calls its model, as with `if len(inputs) < 2: continue`."""

from itertools import zip_longest

from harness.attach.left_batches import LeftBatches, UnusedBatch
from harness.attach.numbering import FIRST_STEPS


class SkippedBatches:
    """Finds the skipped batches of a step.

    A batch is skipped where the script loads another one of the same loader before it calls the model, with
    as many samples as that one has, and no further call follows for it: a script may load several batches at
    once. The batches of several loaders, as of `zip`, are skipped together. Where more than two thirds of the
    calls are after several batches, each call may be for all of them.
    """

    def __init__(self, left: LeftBatches) -> None:
        """`left` has the batches before each call."""
        self._left = left
        # The samples of those batches of the step that no call was for so far.
        self._samples: list[int] = []
        # The number of those that were before the newest call that was after any batch.
        self._earlier = 0
        # The further calls that are for the newest batches of other loaders.
        self._expected_calls = 0
        # Since the first step: calls after several batches, calls after any, and the steps that those are in.
        self._several_calls = self._calls = self._steps = 0
        # The batches before the newest call that was after any.
        self._call_batches: list[UnusedBatch] = []

    def model_called(self, samples: int | None, *, repeats_input: bool) -> None:
        """The first model of the step is called with so many samples. `repeats_input` is whether they are
        those of the call before."""
        call_batches, before = self._left.call_batches, self._call_batches
        if not call_batches or call_batches is before:
            if self._samples and not repeats_input:
                if self._expected_calls:
                    self._expected_calls -= 1
                else:
                    self._samples.pop()
            return
        self._call_batches, self._expected_calls, self._earlier = call_batches, 0, len(self._samples)
        self._calls += 1
        if len(call_batches) == 1:
            return
        by_loader: dict[object, list[int]] = {}
        passes = [batch.batches() for batch in call_batches]
        for batch, batches in zip(call_batches, passes, strict=True):
            # A pass that exists no longer is taken for one over the loader of the newest batch.
            source = passes[-1] if batches is None else batches
            by_loader.setdefault(None if source is None else source.loader, []).append(batch.samples)
        newest = [sizes.pop() for sizes in by_loader.values()]
        if samples in newest:
            self._expected_calls = len(newest) - 1
        if any(by_loader.values()):
            self._several_calls += 1
            if samples in newest or samples == sum(newest):
                self._samples += [sum(sizes) for sizes in zip_longest(*by_loader.values(), fillvalue=0)]

    def drop_earlier(self) -> None:
        """Leave out of the step everything before the newest call that followed a batch."""
        del self._samples[: self._earlier]

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
