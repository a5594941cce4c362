"""The loaders of a script that feed its training, determined by the batches that they deliver.

A loader feeds a step when a batch of it came after the last evaluation and before the end of the step.
"""

from collections.abc import Callable
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from harness.attach.loader_values import LoaderValues, values_of
from harness.attach.numbering import FIRST_STEPS
from harness.attach.passes import LoaderPass

# With more, evaluated batches are taken for those of a loop that evaluates now and then.
_MOST_UPDATES_PER_BATCH = 4


class Feeding:
    """Finds the loaders that feed the training steps. Used on the training thread.

    Attributes:
        training: the loaders that feed the training. One of an earlier stage feeds it no more once another
            one is opened again without a step of its own in between.
        recent: the passes that delivered batches for the step under way, the newest last.
        newest: returns the pass that fed the newest step.
        is_settled: whether the loaders that feed the training are known.
        has_evaluated: whether a model was called, since the last backward pass, without being trained.
        may_be_trained: whether the newest batch may be of the training all the same: it was loaded with
            gradients, and all of these calls were in training mode, as of a generator or a teacher.
        is_dry: whether a pass over a loader of the training is over, and no batch was delivered since.
        loads_ahead: whether the script loads batches before the step that uses them.
        begins_ahead: whether the first step has one batch more than it trains on.
    """

    def __init__(self, fed: Callable[[LoaderPass, bool], None]) -> None:
        """`fed` is called with each pass that feeds a step, where that may be news, and with whether its
        loader is the first one to feed the training."""
        self._fed = fed
        self.training: WeakSet[DataLoader[Any]] = WeakSet()
        self.recent: list[LoaderPass] = []
        self.newest: Callable[[], LoaderPass | None] = _nothing
        self.is_settled = self.has_evaluated = self.may_be_trained = self.is_dry = False
        self._has_begun = self.loads_ahead = self.begins_ahead = self._has_left = False
        self._delivered_by: Callable[[], DataLoader[Any] | None] = _nothing
        self._ended_steps = 0  # Those that were not plain.
        # The newest pass that has ended.
        self._over: Callable[[], LoaderPass | None] = _nothing
        # The loader of the pass that fed the newest step, and how many of them had ended as that was opened.
        self._newest_of: Callable[[], DataLoader[Any] | None] = _nothing
        self._newest_opened_after = 0
        # How many of them had ended as each of the loaders last began to feed the training.
        self._fed_after: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()
        self._values_of_training: list[LoaderValues] = []
        # The newest step with batches that were evaluated, and taken for no part of it.
        self._doubted_step = -_MOST_UPDATES_PER_BATCH
        # The newest step with a loader that had fed none before, and the newest ones with calls of a model
        # alone, and with batches of another loader or gradients, before the first batch.
        self._joining_step = self._called_step = self._unused_step = -1
        # The newest step with batches that were computed without gradients first, and whether the one before
        # had some.
        self._twice_step, self._had_twice = -1, False

    @property
    def has_fed(self) -> bool:
        """Return whether a loader has fed the training."""
        return self.newest is not _nothing

    def feeds(self, batches: LoaderPass) -> bool | None:
        """Return whether the batches of a pass are those of the training; None: not known yet. That takes
        none of a loader where the first steps had none."""
        if not self.has_fed and self._ended_steps < FIRST_STEPS:
            return None
        return batches.loader in self.training

    def evaluate(self, *, in_evaluation_mode: bool) -> None:
        """A model is called without being trained. In evaluation mode that is what the batches of other
        loaders than those of the training are for."""
        self.has_evaluated = True
        if in_evaluation_mode:
            self.may_be_trained = False
            self.recent = [batches for batches in self.recent if self.feeds(batches) is not False]

    @property
    def is_quiet(self) -> bool:
        """Return whether the loader of the newest step is expected to feed the next one too."""
        return self.is_settled and not self.recent and not self.has_evaluated

    @property
    def only_loader(self) -> DataLoader[Any] | None:
        """The only loader that feeds the training."""
        training = list(self.training)
        return training[0] if len(training) == 1 else None

    @property
    def early_samples(self) -> list[int]:
        """Return the samples of the batches that were loaded before training begins: the newest ones of each
        pass together, then those before them, and so on."""
        if self.has_evaluated:
            return []
        distinct = {id(batches): batches for batches in self.recent}.values()  # They may take turns.
        passes = (reversed(batches.early_samples) for batches in distinct)
        return [sum(samples) for samples in zip_longest(*passes, fillvalue=0)]

    @property
    def may_load_ahead(self) -> bool:
        """Return whether batches of the first step may be of the next one: a single pass had one before it,
        and is not read ahead by a loader that is known to."""
        if len(self.recent) > 1:
            return False
        return all(one.early_samples and one.samples_ahead is None for one in self.recent)

    def load_ahead(self) -> None:
        """Count no samples of later passes: the script loads batches before the step that uses them."""
        self.loads_ahead = True

    def opened(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        """Take notice of a new pass over a loader."""
        newest = self.newest()  # Where it is over, this loader may be new, and take its place.
        if len(self.training) > 1 and self._newest_of() is loader and is_grad_enabled():
            self._leave_earlier(loader)
        is_in_training = loader in self.training or newest is None or newest.is_over
        batches.is_ahead = self.loads_ahead and is_in_training and batches.samples_ahead is None
        batches.opened_after = self._ended_steps
        # Before the training, a batch of another loader is no part of it.
        self.recent = [one for one in self.recent if self._has_begun and one.loader is not loader]
        values = [values_of(one) for one in self.training]
        if values != self._values_of_training:
            self._values_of_training, self.is_settled = values, False

    def delivered(self, batches: LoaderPass) -> None:
        """Take notice of a batch."""
        recent, self.is_dry, self.may_be_trained = self.recent, False, is_grad_enabled()
        if self.has_evaluated:
            self.has_evaluated = False
            recent.clear()
            batches.early_samples.clear()
        if not recent or recent[-1] is not batches:
            recent.append(batches)
            self._delivered_by = batches.reference

    def ended(self, batches: LoaderPass) -> None:
        """Take notice of the end of a pass: what it delivered was not for the step under way."""
        self.recent = [one for one in self.recent if one is not batches]
        self._over = ref(batches)
        self.is_dry |= batches.loader in self.training

    def drop(self, reference: Callable[[], LoaderPass | None], opened_after: int) -> bool:
        """Drop the results of the batches of a pass. Return whether the pass was opened since the last step,
        and a batch of another one came after it: then it does not feed the training."""
        batches = reference()
        if opened_after != self._ended_steps or not self.recent or self.recent[-1] is batches:
            return False
        self.recent = [one for one in self.recent if one is not batches]
        return True

    def is_left(self, reference: Callable[[], LoaderPass | None]) -> bool:
        """Return whether the pass of `reference`, a weak one, is the newest of those that have ended, a batch
        of another one came since, and at most one loader feeds the training."""
        return reference is self._over and bool(self.recent) and self.has_fed and len(self.training) < 2

    def is_of_newest(self, source: object) -> bool:
        """Return whether `source`, a loader or a pass over one, has the loader of the newest batch; None: of
        a batch that no loader of torch delivers."""
        loader = source.loader if isinstance(source, LoaderPass) else source
        return source is None or (loader is not None and loader is self._delivered_by())

    def is_of_other(self, source: object) -> bool:
        """Return whether `source`, a loader or a pass over one, has another loader than those that feed the
        training."""
        loader = source.loader if isinstance(source, LoaderPass) else source
        return self.has_fed and loader is not None and loader not in self.training

    def leave_out_evaluated(self, step: int, *, is_fitting: bool) -> bool:
        """Leave the evaluated batches of `step` out, at the call of a model that is trained; return whether
        there were any. A loop over a loader that is left early has such a batch. As long as no loader has fed
        the training, evaluated batches feed it only if the step before had some as well, or, where the model
        is called with as many samples (`is_fitting`), one of the last few: a batch may have several updates.
        Those that `may_be_trained` feed it."""
        since = step - self._doubted_step
        if (
            self.has_fed
            or not self.recent
            or self.may_be_trained
            or 0 < since <= (_MOST_UPDATES_PER_BATCH if is_fitting else 1)
        ):
            return False
        self._leave_evaluated(step)
        return True

    def leave_out_prior(self, source: object, step: int, *, is_called: bool, is_unused: bool) -> bool:
        """Leave out of `step` what came before the first batch of `source`, if it feeds the training and
        the step before had none: calls of a model without a backward pass, or in evaluation mode with one
        (`is_called`), or batches of another loader; `is_unused` is whether there were batches, or gradients.
        Return whether it was left out. Where each step has calls alone, as for the accuracy after the update,
        a step with batches or gradients before its first batch has an evaluation all the same. After calls,
        a new loader feeds the training too if the newest pass is over, as where each task has its own. Not
        batches of passes that go on from before the step: such an auxiliary loader is read every few steps.
        Before any loader has fed the training, all batches of passes that are over are left out."""
        if step <= FIRST_STEPS and not is_called:
            return step == 1 and source is not None and not (self.recent or self.has_fed)
        fed, loader = self.training, source.loader if isinstance(source, LoaderPass) else source
        if not is_called and self.recent and all(one.opened_after < self._ended_steps for one in self.recent):
            return False
        has_own = not is_called and self._delivered_by() in fed
        newest = self.newest()
        takes_over = is_called and loader is not None and self.has_fed and (newest is None or newest.is_over)
        if has_own or not (loader in fed or takes_over) or any(one.loader in fed for one in self.recent):
            return False
        before = self._unused_step
        if is_unused:
            self._unused_step = step
        else:
            before, self._called_step = max(before, self._called_step), step
        if before == step:  # More of what was left out before, or was not.
            return self._joining_step == step
        if is_left := before != step - 1 and self._joining_step != step - 1:
            self._joining_step = step
        return is_left

    def computes_twice(self, source: object, step: int) -> bool:
        """Return whether the batches that were evaluated last belong to `step`, as the next one of the same
        pass, `source`, is requested: if the step before had such too. Some scripts compute the features of
        several batches without gradients, and then each of these batches again with gradients."""
        if not self.recent or self.recent[-1] is not source:
            return False
        if step != self._twice_step:
            self._twice_step, self._had_twice = step, self._twice_step == step - 1
        return self._had_twice and self._delivered_by() in self.training

    def begin(self) -> bool:
        """Take notice of the first forward pass of the training; return whether a loader feeds it."""
        self._has_begun = True
        self.has_evaluated &= not (self.may_be_trained and self.recent)
        if self.has_evaluated:
            self._leave_evaluated(1)
        elif len({id(one.loader) for one in self.recent}) == 1:
            self._add(self.recent[-1])
            return True
        return False

    def end_same_step(self) -> None:
        """End a step that the pass of the newest one has fed alone, where the loaders are settled."""
        self.recent.clear()
        self._ended_steps += 1

    def end_known_step(self) -> bool:
        """End the step if the loader that fed it feeds the training already, or none fed it; return whether
        that is so. Else `step_ended` is to be called."""
        recent = self.recent
        self._ended_steps += 1
        if not self.is_settled or (recent and (len(recent) > 1 or recent[0].loader not in self.training)):
            return False
        if recent and recent[0] is not self.newest():
            self._note_newest(recent[0])
        recent.clear()
        return True

    def step_ended(self, step: int, *, ends_late: bool) -> bool:
        """Take notice of the end of `step`; return whether another loader feeds the training beside those
        before, or one of those no longer does. `ends_late` is whether the next call of the model ended the
        step: then batches that are evaluated, or of a pass that was opened since the step before, are not of
        it. A loader that is new beside one that feeds the training feeds it from the second step in a row on:
        a script may sample from its model with batches of another one."""
        recent, self.recent = self.recent, []
        in_training = [batches for batches in recent if batches.loader in self.training]
        if ends_late and self.has_fed:
            began = 0 if self.has_evaluated else self._ended_steps - 1
            recent = [one for one in recent if one in in_training or one.opened_after < began]
        is_doubtful = bool(in_training) and len(in_training) < len(recent) and self._joining_step != step - 1
        if len(in_training) < len(recent):
            self._joining_step = step
        count = len(self.training)
        for batches in in_training if is_doubtful else recent:
            self._add(batches)
        has_left, self._has_left, self.is_settled = self._has_left, False, True
        return has_left or len(self.training) > max(count, 1)

    def _leave_evaluated(self, step: int) -> None:
        self._doubted_step = step
        self.recent.clear()

    def _note_newest(self, batches: LoaderPass) -> DataLoader[Any] | None:
        self.newest, batches.has_fed = ref(batches), True
        self._newest_of, self._newest_opened_after = batches.reference, batches.opened_after
        if (loader := batches.loader) is not None:
            self._fed_after[loader] = self._ended_steps
        return loader

    def _leave_earlier(self, loader: DataLoader[Any]) -> None:
        """Forget the loaders that have fed nothing since the pass of `loader` before was opened."""
        for other in list(self.training):
            if other is not loader and self._fed_after.get(other, 0) <= self._newest_opened_after:
                self.training.discard(other)
                self._has_left, self.is_settled = True, False

    def _add(self, batches: LoaderPass) -> None:
        loader = self._note_newest(batches)
        is_first = loader is not None and not self.training
        if loader is not None:
            self.training.add(loader)
        self._fed(batches, is_first)


def _nothing() -> None:
    return None
