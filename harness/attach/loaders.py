"""The settings of the DataLoader that feeds a script's training, changed between two steps.

`len(loader)` follows: scripts and frameworks find the last batch of an epoch by it, and divide by it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from harness.attach.guard import ScriptGuard
from harness.attach.lengths import LoaderLengths, full_length
from harness.attach.loader_change import LoaderChange
from harness.attach.loader_refusals import is_allowed, loader_refusal
from harness.attach.loader_values import (
    LoaderValues,
    drops_last,
    is_iterable,
    samples_in,
    values_of,
)
from harness.attach.passes import LoaderPass, OpenIterator, retire
from harness.attach.reasons import reason_of
from harness.errors import StepscopeError
from harness.settings import Settings
from harness.settings.spec import SPECS

LOADER_SETTINGS = LoaderValues._fields
_READ_SHORT = (
    "len(loader) follows: a script that has read it before may end this epoch, or a schedule, early."
)
_READ_LONG = "len(loader) follows: a script that has read it before may look for more batches in this epoch."
# With more, evaluated batches are taken for those of a loop that evaluates now and then.
_MOST_UPDATES_PER_BATCH = 4


class LoaderSwitch:
    """Finds the loader that feeds the training steps, and exchanges its iterator where its values change.

    A loader feeds a step when a batch of it came after the last evaluation and before the end of the step.

    Attributes:
        loaders: the loaders that were opened.
        iterators: torch's iterators of them, with their values.
        recent: the passes that delivered batches for the step under way, the newest last.
        newest: returns the pass that fed the newest step.
        is_settled: whether the loaders that feed the training are known.
        has_evaluated: whether a model was called, since the last backward pass, without being trained.
        is_dry: whether a pass over a loader of the training is over, and no batch was delivered since.
        loader_opened: called with a loader that is opened.
        awaited: the values that had to wait for the next pass; None: there are none.
        took_effect: called when they are in effect.
    """

    def __init__(self, guard: ScriptGuard, *, changes_together: bool = False) -> None:
        """`changes_together`: all ranks of the run change their loaders before the same step."""
        self._guard = guard
        self._changes_together = changes_together
        self.loader_opened: Callable[[DataLoader[Any]], None] = _ignore
        self.awaited: LoaderValues | None = None
        self.took_effect: Callable[[], object] = _nothing
        self.loaders: WeakSet[DataLoader[Any]] = WeakSet()
        self.iterators: WeakKeyDictionary[Any, LoaderValues] = WeakKeyDictionary()
        self._failure: str | None = None
        self.has_evaluated = self.is_dry = False
        self._delivered_by: Callable[[], DataLoader[Any] | None] = _nothing
        self.recent: list[LoaderPass] = []
        self._training: WeakSet[DataLoader[Any]] = WeakSet()
        self._fixed: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()
        self.newest: Callable[[], LoaderPass | None] = _nothing
        self._requested: WeakKeyDictionary[DataLoader[Any], dict[str, Any]] = WeakKeyDictionary()
        self._tried: WeakKeyDictionary[DataLoader[Any], LoaderValues] = WeakKeyDictionary()
        self._lengths = LoaderLengths()
        self._openings = 0  # Iterators that stand in for one that the script's loader would have kept.
        self._change: LoaderChange | None = None
        self._recorded: dict[str, Any] = {}
        self._fed_by: list[LoaderValues] = []
        self.is_settled = self._has_begun = self._loads_ahead = False
        # The newest step with batches that were evaluated, and taken for no part of it.
        self._doubted_step = -_MOST_UPDATES_PER_BATCH
        # The newest step with a loader that had fed none before, and the newest one with calls of a model, or
        # batches of another loader, before its first batch.
        self._joining_step = self._called_step = -1

    @property
    def has_fed(self) -> bool:
        """Return whether a loader has fed the training."""
        return self.newest is not _nothing

    @property
    def is_quiet(self) -> bool:
        """Return whether the loader of the newest step is expected to feed the next one too."""
        return self.is_settled and not self.recent and not self.has_evaluated

    def open(self, loader: DataLoader[Any], open_iterator: OpenIterator) -> LoaderPass:
        """Return a pass over a loader. Raises what the script's loader raises."""
        batches = LoaderPass(loader, open_iterator, partial(self._guard.run, self._opened))
        self._guard.run(self._prepare, loader, batches)
        batches.open(loader)
        return batches

    def follow(self, loader: DataLoader[Any], iterator: Iterator[Any]) -> LoaderPass:
        """Return a pass over a loader that has opened `iterator` by itself: its values are fixed."""
        batches = LoaderPass(loader, iter, partial(self._guard.run, self._opened))
        batches.batches = iterator
        self._guard.run(self._follow, loader, batches)
        return batches

    def delivered(self, batches: LoaderPass) -> None:
        """Take notice of a batch."""
        recent, self.is_dry = self.recent, False
        if self.has_evaluated:
            self.has_evaluated = False
            recent.clear()
            batches.early_samples.clear()
        if not recent or recent[-1] is not batches:
            recent.append(batches)
            self._delivered_by = batches.reference

    def leave_out_evaluated(self, step: int, *, is_fitting: bool) -> bool:
        """Leave the evaluated batches of `step` out, at the call of a model that is trained; return whether
        there were any. A loop over a loader that is left early has such a batch. As long as no loader has fed
        the training, evaluated batches feed it only if the step before had some as well, or, where the model
        is called with as many samples (`is_fitting`), one of the last few: a batch may have several updates.
        """
        since = step - self._doubted_step
        if self.has_fed or not self.recent or 0 < since <= (_MOST_UPDATES_PER_BATCH if is_fitting else 1):
            return False
        self._leave_evaluated(step)
        return True

    def leave_out_prior(self, source: object, step: int, *, is_called: bool) -> bool:
        """Leave out of `step` what came before the first batch of `source`, if it feeds the training and
        the step before had none: calls of a model without a backward pass (`is_called`), or else batches of
        another loader. Return whether it was left out."""
        fed, loader = self._training, source.loader if isinstance(source, LoaderPass) else source
        has_own = not is_called and self._delivered_by() in fed
        if has_own or loader not in fed or any(one.loader in fed for one in self.recent):
            return False
        before, self._called_step = self._called_step, step
        if is_left := before not in (step, step - 1) and self._joining_step != step - 1:
            self._joining_step = step
        return is_left

    def ended(self, batches: LoaderPass) -> None:
        """Take notice of the end of a pass: what it delivered was not for the step under way."""
        self.recent = [one for one in self.recent if one is not batches]
        if (loader := batches.loader) is not None:
            self._tried[loader] = batches.tried_values
            self._lengths.ended(loader, batches)
            self.is_dry |= loader in self._training

    def load_ahead(self) -> None:
        """Count no samples of later passes: the script loads batches before the step that uses them."""
        self._loads_ahead = True

    @property
    def early_samples(self) -> list[int]:
        """Return the samples of the batches that were loaded before training begins: the newest ones of each
        pass together, then those before them, and so on."""
        if self.has_evaluated:
            return []
        passes = (reversed(batches.early_samples) for batches in self.recent)
        return [sum(samples) for samples in zip_longest(*passes, fillvalue=0)]

    def begin(self) -> None:
        """Take notice of the first forward pass of the training."""
        self._has_begun = True
        if self.has_evaluated:
            self._leave_evaluated(1)
        elif len({id(one.loader) for one in self.recent}) == 1:
            self._add_feeding(self.recent[-1])
            self._recorded = self.values()

    def step_ended(self, step: int, *, is_ended_by_evaluation: bool = False) -> dict[str, Any] | None:
        """Take notice of the end of `step`; return the earlier values where those in effect now, or the
        reasons why they cannot change, are to be recorded, else None. `is_ended_by_evaluation` is whether
        batches that came last are evaluated. A loader that is new beside one that feeds the training feeds it
        from the second step in a row on: a script may sample from its model with batches of another one."""
        recent = self.recent
        if self.is_settled and (not recent or (len(recent) == 1 and recent[0].loader in self._training)):
            if recent and recent[0] is not self.newest():
                self.newest, recent[0].has_fed = ref(recent[0]), True
            recent.clear()
            return None
        self.recent = []
        known = [batches for batches in recent if batches.loader in self._training]
        if is_ended_by_evaluation:
            recent = known
        is_doubtful = bool(known) and len(known) < len(recent) and self._joining_step != step - 1
        if len(known) < len(recent):
            self._joining_step = step
        feeding = len(self._training)
        for batches in known if is_doubtful else recent:
            self._add_feeding(batches)
        self.is_settled = True
        earlier, self._recorded = self._recorded, self.values()
        has_joined = len(self._training) > max(feeding, 1)
        return earlier if has_joined or earlier != self._recorded or self._failure is not None else None

    def take_failure(self) -> str | None:
        """Return a sentence about values that failed since the last call, if any."""
        failure, self._failure = self._failure, None
        return failure

    def values(self) -> dict[str, Any]:
        """Return the values in effect, by the names of the settings that have one."""
        if (loader := self._loader) is None:
            return {}
        values = self._values_of(loader)._asdict()
        return {name: value for name, value in values.items() if is_allowed(name, value)}

    def refusal(self, name: str) -> str | None:
        """Return the reason that the setting `name` cannot change; None: it can."""
        label, loader, newest = SPECS[name].label, self._loader, self.newest()
        if loader is None:
            return self._refusal_without_loader(label)
        fixed = self._fixed.get(loader) if newest is None else newest.fixed_because
        if fixed is not None:
            return f"{label} cannot change in this script's loader: {fixed}."
        values, together = self._values_of(loader), self._changes_together
        return loader_refusal(name, loader, values, changes_together=together)

    def _refusal_without_loader(self, label: str) -> str:
        newest, count = self.newest(), len(self._training)
        if count:
            return f"{label} can change if one loader feeds the training; {count} feed that of this script."
        if newest is not None and (fixed := newest.fixed_because) is not None:
            return f"{label} cannot change in this script's loader: {fixed}."
        return f"{label} can change in a torch.utils.data.DataLoader; none has fed a step of this script yet."

    def apply(self, settings: Settings) -> str | None:
        """Put the loader's settings into effect; return a sentence about when, if not at once. Raises
        StepscopeError when the iterator cannot be opened; everything is then as before."""
        loader, newest = self._loader, self.newest()
        if loader is None:
            return None
        own, before = values_of(loader), self._values_of(loader)
        requested = {name: getattr(settings, name) for name in self.values() if self.refusal(name) is None}
        values = before._replace(**requested)
        if values == before:
            return None
        remarks, self.awaited = [], None
        if self.is_dry:
            self.awaited = values
            remarks.append(
                "It takes effect when the script opens the loader again: its last pass has ended. A script "
                "that repeats the batches of that pass, as by itertools.cycle, opens it no more."
            )
        elif newest is not None and not newest.is_over:
            if newest.obstacle is None:
                newest.exchange(values)
                size, size_before = values.batch_size or 0, before.batch_size or 0
                if size != size_before:
                    remarks.append(_READ_SHORT if size < size_before else _READ_LONG)
            else:
                self.awaited = values
                remarks.append(f"It takes effect at the next epoch, because {newest.obstacle}.")
        changed = {name: value for name, value in requested.items() if value != getattr(own, name)}
        self._requested[loader] = changed
        self._change = LoaderChange.of(loader, changed)
        self._recorded = self.values()
        return " ".join(remarks) or None

    @property
    def batches_in_pass(self) -> int | None:
        """The number of batches in a whole pass; None: unknown."""
        loader = self._loader
        return None if loader is None else full_length(loader, self._values_of(loader).batch_size)

    def length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches that a script reads as `len(loader)`; None: torch's own."""
        self._inherit_change(loader)
        return self._lengths.read(loader, self.newest(), self._requested.get(loader, {}).get("batch_size"))

    def samples_dropped_by(self, size: int) -> int | None:
        """Return the number of samples in an epoch, all of which batches of `size` would drop; None: none."""
        loader = self._loader
        if loader is None or not drops_last(loader) or is_iterable(loader):
            return None
        samples = samples_in(loader)
        return samples if samples is not None and samples < size else None

    def would_leave_one_sample(self, size: int) -> bool:
        """Return whether batches of `size` leave one of a single sample at the end of this epoch or of the
        next ones, which those of the script do not."""
        loader, newest = self._loader, self.newest()
        if loader is None or drops_last(loader) or is_iterable(loader):
            return False
        samples, own = samples_in(loader), values_of(loader).batch_size
        if samples is None or not own or samples % own == 1:
            return False
        is_open = newest is not None and not newest.is_over and newest.obstacle is None
        left = newest.samples_left(samples) if newest is not None and is_open else None
        return 1 in (size, samples % size) or (left is not None and left % size == 1)

    @property
    def _loader(self) -> DataLoader[Any] | None:
        """The only loader that feeds the training."""
        training = list(self._training)
        return training[0] if len(training) == 1 else None

    def _leave_evaluated(self, step: int) -> None:
        self._doubted_step = step
        self.recent.clear()

    def _values_of(self, loader: DataLoader[Any]) -> LoaderValues:
        return values_of(loader)._replace(**self._requested.get(loader, {}))

    def _prepare(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        self._inherit_change(loader)
        values, persistent = self._values_of(loader), loader._iterator
        keeps_workers = bool(loader.persistent_workers and loader.num_workers)
        has_workers = keeps_workers and (persistent is not None or loader in self.loaders)
        self._note_pass(loader, batches)
        self._lengths.opened(loader, batches)
        if persistent is not None and self.iterators.get(persistent, values) != values:
            loader._iterator = None
            retire(persistent)
        if has_workers and loader._iterator is None:
            self._openings += 1
            batches.draw_no_seed(self._openings)
        batches.prepare(loader, values, self._tried.get(loader, values_of(loader)))

    def _inherit_change(self, loader: DataLoader[Any]) -> None:
        """Let a loader that takes the place of the one that fed the training, and exists no longer, have the
        values of that one."""
        change = self._change
        is_free = change is not None and not self._training and is_grad_enabled()
        if change is not None and is_free and change.is_for_successor(loader):
            self._requested.setdefault(loader, change.changed)

    def _follow(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        self._note_pass(loader, batches)
        batches.follow(loader)

    def _note_pass(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        self.loader_opened(loader)
        newest = self.newest()  # Where it is over, this loader may be new, and take its place.
        is_in_training = loader in self._training or newest is None or newest.is_over
        batches.is_ahead = self._loads_ahead and is_in_training
        # Before the training, a batch of another loader is no part of it.
        self.recent = [one for one in self.recent if self._has_begun and one.loader is not loader]
        self.loaders.add(loader)
        feeding = [values_of(one) for one in self._training]
        if feeding != self._fed_by:
            self._fed_by, self.is_settled = feeding, False

    def _opened(self, batches: LoaderPass, error: Exception | None) -> None:
        self.iterators[batches.batches] = batches.values
        loader = batches.loader
        if self.awaited == batches.values:
            self.awaited = None
            self.took_effect()
        if error is None or loader is None:
            return
        own = values_of(loader)
        values = batches.values._asdict().items()
        differing = {name: value for name, value in values if value != getattr(own, name)}
        self._requested[loader] = differing
        self._change = None
        self.is_settled = False
        self._failure = f"The loader failed with new values, and has its earlier ones: {reason_of(error)}"

    def _add_feeding(self, batches: LoaderPass) -> None:
        loader = batches.loader
        self.newest, batches.has_fed = ref(batches), True
        if loader is None:
            return
        if (fixed := batches.fixed_because) is not None:
            self._fixed[loader] = fixed
        if loader in self._training:
            return
        is_first = not self._training
        self._training.add(loader)
        if self._change is None or not is_first:
            return
        own, requested = self._change.own, self._change.changed
        values = own._replace(**requested)
        if own != values_of(loader) or values == batches.values:
            return
        if batches.obstacle is None and fixed is None:
            try:
                batches.exchange(values)
            except StepscopeError as error:
                self._change, self._failure = None, str(error)
            else:
                self._requested[loader] = requested


def _nothing() -> None:
    return None


def _ignore(_loader: DataLoader[Any]) -> None:
    """No step is under way."""
