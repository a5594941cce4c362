"""The settings of the DataLoader that feeds a script's training, changed between two steps.

`len(loader)` follows: scripts and frameworks find the last batch of an epoch by it, and divide by it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from harness.attach.feeding import Feeding
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
from harness.attach.passes import LoaderPass, OpenIterator
from harness.attach.places import opens_ahead
from harness.attach.reasons import reason_of
from harness.attach.torch_iterator import retire
from harness.errors import StepscopeError
from harness.settings import Settings
from harness.settings.spec import SPECS

LOADER_SETTINGS = LoaderValues._fields
_READ_SHORT = (
    "len(loader) follows: a script that has read it before may end its epochs, or a schedule, early."
)
_READ_LONG = "len(loader) follows: a script that has read it before may look for more batches in this epoch."
_AHEAD = "The script loads batches ahead: those that it has loaded still have the values before."
_LOADED = "The batch of this step was loaded before the change."


class LoaderSwitch:
    """Changes the values of the loader that feeds the training steps: exchanges its iterator.

    Attributes:
        changes_together: whether all ranks of the run change their settings before the same step.
        feeding: finds that loader.
        loaders: the loaders that were opened.
        iterators: torch's iterators of them, with their values.
        loader_opened: called with a loader that is opened.
        awaited: the values that had to wait for the next pass; None: there are none.
        took_effect: called when they are in effect.
    """

    def __init__(self, guard: ScriptGuard, *, changes_together: bool = False) -> None:
        """For `changes_together` see above."""
        self._guard = guard
        self.changes_together = changes_together
        self.feeding = Feeding(self._fed)
        self.loader_opened: Callable[[DataLoader[Any]], None] = _ignore
        self.awaited: LoaderValues | None = None
        self.took_effect: Callable[[], object] = _nothing
        self.loaders: WeakSet[DataLoader[Any]] = WeakSet()
        self.iterators: WeakKeyDictionary[Any, LoaderValues] = WeakKeyDictionary()
        self._failure: str | None = None
        self._fixed: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()
        self._requested: WeakKeyDictionary[DataLoader[Any], dict[str, Any]] = WeakKeyDictionary()
        self._tried: WeakKeyDictionary[DataLoader[Any], LoaderValues] = WeakKeyDictionary()
        self._lengths = LoaderLengths()
        self._openings = 0  # Iterators that stand in for one that the script's loader would have kept.
        self._change: LoaderChange | None = None
        self._recorded: dict[str, Any] = {}

    def open(self, loader: DataLoader[Any], open_iterator: OpenIterator) -> LoaderPass:
        """Return a pass over a loader. Raises what the script's loader raises."""
        batches = LoaderPass(loader, open_iterator, partial(self._guard.run, self._opened))
        batches.samples_ahead = 0 if self._guard.run(opens_ahead) else None
        self._guard.run(self._prepare, loader, batches)
        batches.open(loader)
        return batches

    def follow(self, loader: DataLoader[Any], iterator: Iterator[Any]) -> LoaderPass:
        """Return a pass over a loader that has opened `iterator` by itself: its values are fixed."""
        batches = LoaderPass(loader, iter, partial(self._guard.run, self._opened))
        batches.batches = iterator
        self._guard.run(self._follow, loader, batches)
        return batches

    def ended(self, batches: LoaderPass) -> None:
        """Take notice of the end of a pass: what it delivered was not for the step under way."""
        self.feeding.ended(batches)
        if (loader := batches.loader) is not None:
            self._tried[loader] = batches.tried_values
            self._lengths.ended(loader, batches)

    def begin(self) -> None:
        """Take notice of the first forward pass of the training."""
        if self.feeding.begin():
            self._recorded = self.values()

    def step_ended(self, step: int, *, ends_late: bool = False) -> dict[str, Any] | None:
        """Take notice of the end of `step`, as `Feeding.step_ended`; return the earlier values where those in
        effect now, or the reasons why they cannot change, are to be recorded, else None."""
        if self.feeding.end_known_step():
            return None
        has_others = self.feeding.step_ended(step, ends_late=ends_late)
        earlier, self._recorded = self._recorded, self.values()
        return earlier if has_others or earlier != self._recorded or self._failure is not None else None

    def take_failure(self) -> str | None:
        """Return a sentence about values that failed since the last call, if any."""
        failure, self._failure = self._failure, None
        return failure

    def values(self) -> dict[str, Any]:
        """Return the values in effect, by the names of the settings that have one."""
        if (loader := self.feeding.only_loader) is None:
            return {}
        values = self._values_of(loader)._asdict()
        return {name: value for name, value in values.items() if is_allowed(name, value)}

    def refusal(self, name: str) -> str | None:
        """Return the reason that the setting `name` cannot change; None: it can."""
        label, loader, newest = SPECS[name].label, self.feeding.only_loader, self.feeding.newest()
        if loader is None:
            return self._refusal_without_loader(label)
        fixed = self._fixed.get(loader) if newest is None else newest.fixed_because
        if fixed is not None:
            return f"{label} cannot change in this script's loader: {fixed}."
        values, together = self._values_of(loader), self.changes_together
        return loader_refusal(name, loader, values, changes_together=together)

    def _refusal_without_loader(self, label: str) -> str:
        newest, count = self.feeding.newest(), len(self.feeding.training)
        if count:
            return f"{label} can change if one loader feeds the training; {count} feed that of this script."
        if newest is not None and (fixed := newest.fixed_because) is not None:
            return f"{label} cannot change in this script's loader: {fixed}."
        return f"{label} can change in a torch.utils.data.DataLoader; none has fed a step of this script yet."

    def apply(self, settings: Settings) -> str | None:
        """Put the loader's settings into effect; return a sentence about when, if not at once. Raises
        StepscopeError when the iterator cannot be opened; everything is then as before."""
        loader, newest = self.feeding.only_loader, self.feeding.newest()
        if loader is None:
            return None
        own, before = values_of(loader), self._values_of(loader)
        requested = {name: getattr(settings, name) for name in self.values() if self.refusal(name) is None}
        values = before._replace(**requested)
        if values == before:
            return None
        remarks, self.awaited = [], None
        if self.feeding.is_dry:
            self.awaited = values
            remarks.append(
                "It takes effect when the script opens the loader again: its last pass has ended. A script "
                "that repeats the batches of that pass, as by itertools.cycle, opens it no more."
            )
        elif newest is not None and not newest.is_over:
            if newest.obstacle is None:
                newest.exchange(values)
                if newest.is_ahead or newest.samples_ahead is not None or self.feeding.begins_ahead:
                    remarks.append(_AHEAD)
                elif self.feeding.recent:  # As of a request before the first step.
                    remarks.append(_LOADED)
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
        loader = self.feeding.only_loader
        return None if loader is None else full_length(loader, self._values_of(loader).batch_size)

    def length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches that a script reads as `len(loader)`; None: torch's own."""
        self._inherit_change(loader)
        size = self._requested.get(loader, {}).get("batch_size")
        return self._lengths.read(loader, self.feeding.newest(), size)

    def samples_dropped_by(self, size: int) -> int | None:
        """Return the number of samples in an epoch, all of which batches of `size` would drop; None: none."""
        loader = self.feeding.only_loader
        if loader is None or not drops_last(loader) or is_iterable(loader):
            return None
        samples = samples_in(loader)
        return samples if samples is not None and samples < size else None

    def would_leave_one_sample(self, size: int) -> bool:
        """Return whether batches of `size` leave one of a single sample at the end of this epoch or of the
        next ones, which those of the script do not."""
        loader, newest = self.feeding.only_loader, self.feeding.newest()
        if loader is None or drops_last(loader) or is_iterable(loader):
            return False
        samples, own = samples_in(loader), values_of(loader).batch_size
        if samples is None or not own or samples % own == 1:
            return False
        is_open = newest is not None and not newest.is_over and newest.obstacle is None
        left = newest.samples_left(samples) if newest is not None and is_open else None
        return 1 in (size, samples % size) or (left is not None and left % size == 1)

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
        is_free = change is not None and not self.feeding.training and is_grad_enabled()
        if change is not None and is_free and change.is_for_successor(loader):
            self._requested.setdefault(loader, change.changed)

    def _follow(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        self._note_pass(loader, batches)
        batches.follow(loader)

    def _note_pass(self, loader: DataLoader[Any], batches: LoaderPass) -> None:
        self.loader_opened(loader)
        self.feeding.opened(loader, batches)
        self.loaders.add(loader)

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
        self.feeding.is_settled = False
        self._failure = f"The loader failed with new values, and has its earlier ones: {reason_of(error)}"

    def _fed(self, batches: LoaderPass, is_first: bool) -> None:
        """Take notice of a pass that feeds the training. `is_first`: no loader did before. If this one takes
        the place of a dropped loader, it has the values of that one."""
        loader, fixed = batches.loader, batches.fixed_because
        if loader is None:
            return
        if fixed is not None:
            self._fixed[loader] = fixed
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
