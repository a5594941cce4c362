"""The calls of a script about its own training: scalars, phases, notes, settings of its own, and its loaders.

`stepscope` is the public form of these. Values of the script raise ValueError where they cannot be recorded;
whatever else fails ends the watch, and training goes on.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from harness.attach.batches import batch_axis, samples_of
from harness.attach.declared_settings import ScriptLiveSettings
from harness.attach.guard import ScriptGuard
from harness.attach.iterators import ScriptIterator
from harness.attach.numbering import ARRIVED
from harness.attach.observation import Observation
from harness.attach.scalars import (
    DeviceReads,
    ScalarFault,
    ScalarWriter,
    check_name,
    check_names,
    check_step,
    new_row,
    number_of,
)
from harness.records.run import AmpMode, EventKind, EventRow, Severity
from harness.records.script import PHASE_PREFIX, DeclaredSetting, SettingValue
from harness.watch.context import RunContext
from harness.words import clip, printable

_LOSS = "loss"
_LONGEST_LABEL = 40
_LONGEST_NOTE = 2_000
# Scalars logged before the training begins.
_MOST_EARLY = 10_000
_DTYPES = {AmpMode.BF16: torch.bfloat16, AmpMode.FP16: torch.float16}


class Remarks:
    """The calls of a script about its training; used on the training thread.

    Attributes:
        is_open: whether the training has begun.
        observation: the steps, once it has.
        clock_ns: the clock of the script's own phases.
    """

    def __init__(self, guard: ScriptGuard) -> None:
        self._guard = guard
        self._early: deque[tuple[int | None, dict[str, float | Tensor]]] = deque(maxlen=_MOST_EARLY)
        # Of scalars: those that have been checked.
        self._names: set[str] = set()
        self._phases_ns: dict[str, tuple[int, int]] = {}
        # The names of those that have begun and not ended: one within itself, as in a recursive function,
        # is a part of the outermost.
        self.open_phases: set[str] = set()
        self.clock_ns: Callable[[], int] = time.perf_counter_ns
        # By what they warn about: label and message, until the training begins.
        self._warnings: dict[str, tuple[str, str]] = {}
        self.is_open = False
        self._reads_at_once = False
        self._handles_stop, self._loops = False, 0

    def open(self, context: RunContext, observation: Observation, live: ScriptLiveSettings) -> None:
        """Begin to record, with what was logged before."""
        self._context, self.observation, self._live = context, observation, live
        self._device = context.device.torch_device
        reads = DeviceReads.of(self._device)
        self._put, self._clock_ns = context.journal.put, context.clock_ns
        self._scalars = ScalarWriter(self._put, self._clock_ns, reads)
        self.is_open, self._reads_at_once = True, reads is None
        for step, numbers in self._early:
            self._scalars.write(observation.under_way.number if step is None else step, numbers)
        self._early.clear()
        for label, message in self._warnings.values():
            context.warn(label, clip(message, _LONGEST_NOTE))
        self._choose_end()

    def close(self) -> None:
        """Record what the device has finished. Call it when the device is idle."""
        if self.is_open:
            ScriptGuard().run(self._scalars.collect)

    def hide_from_compiler(self) -> None:
        """From now on have torch.compile leave out what records: it would else trace it where a compiled
        function calls it, compile most of its functions, and warn of their lines."""
        for name in ("log", "note", "phase_ended", "clock_ns"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    @property
    def is_stopped(self) -> bool:
        """Return whether a person has stopped the run, or it has reached its last step."""
        return self.is_open and self.observation.has_ended

    @property
    def position(self) -> tuple[int, bool]:
        """The number of the last step that has ended, and whether the next one is under way."""
        return (
            (self.observation.under_way.ended, self.observation.under_way.is_begun)
            if self.is_open
            else (0, False)
        )

    def log(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Record numbers at `step`, by default the step under way; `loss` is also the loss of that step.
        Raises ValueError for anything but numbers.

        Flat for what nearly every call has, see `harness.attach.entries`: finite floats, or tensors of them
        on the CPU, under names that have been logged before.
        """
        if step is not None or not self._reads_at_once:
            self._log(values, step)
            return
        under_way, names, t_ns = self.observation.under_way, self._names, self._clock_ns()
        # As `is_begun` and `number`, without a call.
        is_begun = under_way.has_begun or len(under_way.times_ns) >= ARRIVED
        step = under_way.ended + 1 if is_begun else max(1, under_way.ended)
        rows, loss = [], None
        for name, value in values.items():
            try:
                number: Any = value.item() if type(value) is Tensor and value.is_cpu else value
            except RuntimeError:  # It has several elements.
                break
            if type(number) is not float or name not in names or not isfinite(number):
                break
            if name == _LOSS:
                loss = number
            rows.append(new_row((step, name, t_ns, number, 0)))
        else:
            if is_begun and loss is not None:
                under_way.logged_loss = loss
            if self._guard.is_on:
                for row in rows:
                    self._put(row)
            return
        self._log(values, None)

    def _log(self, values: Mapping[str, object], step: int | None) -> None:
        numbers: dict[str, float | Tensor] = {}
        for name, value in values.items():
            numbers[name] = value if type(value) is float else number_of(name, value)
        if not numbers.keys() <= self._names:
            check_names(numbers.keys(), self._names)
        if not self.is_open:
            self._early.append((step, numbers))
            return
        if not self._guard.is_watching:  # In the capture of a CUDA graph, copies would become a part of it.
            return
        if step is None:
            under_way = self.observation.under_way
            step = under_way.number
            loss = numbers.get(_LOSS)
            # One on an accelerator, in a training on the CPU, is read as a scalar only: see `LossReader`.
            is_readable = isinstance(loss, float) or not self._reads_at_once
            if under_way.is_begun and loss is not None and is_readable:
                under_way.logged_loss = loss
        self._guard.run(self._scalars.write, step, numbers)

    def log_possible(
        self,
        values: Mapping[Any, object],
        step: object = None,
        tolerated: Collection[ScalarFault] = tuple(ScalarFault),
    ) -> None:
        """Record numbers as `log` does, for logs that must not end the training: what cannot be recorded for
        one of the `tolerated` reasons is left out, with one warning per reason. Raises ValueError for any
        other reason."""
        try:
            self.log(values, check_step("step", step))
            return
        except ValueError:
            pass  # Of one of them; the others are recorded.
        for name, value in values.items():
            fault = ScalarFault.STEP
            try:
                checked_step = check_step("step", step)
                fault = ScalarFault.VALUE
                number = number_of(name, value)
                fault = ScalarFault.NAME
                check_name(name)
                fault = ScalarFault.MANY_NAMES
                self.log({name: number}, checked_step)
            except ValueError as error:
                if fault not in tolerated:
                    raise
                rest = "It is left out, and so is what else cannot be recorded for this reason."
                self.warn_once(fault, "scalars left out", f"{printable(str(error))} {rest}")

    def warn_once(self, about: str, label: str, message: str) -> None:
        """Write a warning, unless there was one `about` the same."""
        if about in self._warnings:
            return
        self._warnings[about] = label, message
        if self.is_open:
            self._guard.run(self._context.warn, label, clip(message, _LONGEST_NOTE))

    def note(self, text: object) -> None:
        """Record an event at the step under way."""
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"An event cannot be {text!r}; describe it in a sentence.")
        if self.is_open:
            # Half characters, as of a file name in another encoding, are spelled out: no log can hold them.
            line = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
            self._guard.run(self._put_note, line)

    def phase(self, name: object) -> "ScriptPhase":
        """Return the context of a phase of the script's own. Raises ValueError for a name that the scalar of
        its duration cannot have."""
        scalar = check_name(name, PHASE_PREFIX, "phase")
        check_names((scalar,), self._names)
        return ScriptPhase(self, scalar)

    def phase_ended(self, name: str, duration_ns: int) -> None:
        """Record the duration of a phase by the name of its scalar; those of one step are added up."""
        if not self.is_open:
            return
        step = self.observation.under_way.number
        last, total_ns = self._phases_ns.get(name, (0, 0))
        total_ns = duration_ns + (total_ns if last == step else 0)
        self._phases_ns[name] = step, total_ns
        self.log({name: total_ns / 1e6}, step)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast that the AMP setting says; none when AMP is off."""
        dtype = None
        if self.is_open:
            self.observation.autocast.has_place = True
            dtype = _DTYPES.get(self.observation.training.settings.amp)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype=dtype)

    def declare(self, setting: DeclaredSetting) -> None:
        """Add a setting of the script's own."""
        self._live.declare(setting, self.observation.under_way.number)

    def value(self, name: str) -> SettingValue:
        """Return the value in effect of a setting of the script's own."""
        return self._live.value(name)

    def handle_stop(self) -> None:
        """From now on a stop raises nothing: the script checks `is_stopped` after each step."""
        self._handles_stop = True
        self._choose_end()

    def loop_began(self) -> None:
        """Until `loop_ended`, a stop raises nothing: a loop over the steps ends itself."""
        self._loops += 1
        self._choose_end()

    def loop_ended(self) -> bool:
        """Return whether no other such loop is left, which this one was within."""
        self._loops -= 1
        self._choose_end()
        return not self._loops

    def _choose_end(self) -> None:
        if self.is_open:
            self.observation.raises_stop = not (self._handles_stop or self._loops)

    def restart_first_step(self) -> None:
        """The first step begins now, unless a model was called for training: batches that the script has
        loaded before its loops, such as all of them into memory, belong to no step."""
        if self.is_open and self.observation.step == 1 and not self._loops:
            self._guard.run(self._restart_first_step)

    def _restart_first_step(self) -> None:
        observation, under_way = self.observation, self.observation.under_way
        if not under_way.has_trained:
            under_way.has_begun = observation.sizes.has_new_batch = False
            observation.tracker.restart()

    def open_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator of `batches`, whose time for each batch is data wait."""
        # Torch's loaders report their batches themselves; those of another thread train another model.
        is_reported = isinstance(batches, DataLoader | ScriptIterator)
        if is_reported or not (self.is_open and self._guard.follows()):
            return iter(batches)
        return self._timed(iter(batches), getattr(batches, "batch_size", None))

    def _timed(self, batches: Iterator[Any], size: object) -> Iterator[Any]:
        axis, run, observation = None, self._guard.run, self.observation

        def arrived(batch: Any) -> None:
            nonlocal axis
            if axis is None:
                axis = batch_axis(batch, size if isinstance(size, int) else None)
            observation.batch_arrived(samples_of(batch, axis))

        while True:
            run(observation.batch_requested)
            observation.is_loading = True
            try:
                batch = next(batches)
            except BaseException as error:
                has_failed = not isinstance(error, StopIteration)
                observation.is_loading = False
                run(observation.batch_missed, has_failed)
                if has_failed:
                    raise
                return
            observation.is_loading = False
            run(arrived, batch)
            yield batch
            del batch  # Released before the next one is loaded, if the loop releases it.

    def _put_note(self, text: str) -> None:
        context, step = self._context, self.observation.under_way.number
        label, message = clip(text, _LONGEST_LABEL), clip(text, _LONGEST_NOTE)
        context.journal.put(
            EventRow(context.clock_ns(), step, EventKind.NOTE, Severity.INFO, label, message, "{}", None)
        )


class ScriptPhase:
    """A phase of the script's own, as a context manager; `name` is that of its scalar."""

    def __init__(self, remarks: Remarks, name: str) -> None:
        self._remarks = remarks
        self._name = name
        self._clock_ns = remarks.clock_ns
        self._began_ns: list[int | None] = []

    def __enter__(self) -> None:
        is_outermost = self._name not in self._remarks.open_phases
        self._remarks.open_phases.add(self._name)
        self._began_ns.append(self._clock_ns() if is_outermost else None)

    def __exit__(self, *_: object) -> None:
        if (began_ns := self._began_ns.pop()) is not None:
            self._remarks.open_phases.discard(self._name)
            self._remarks.phase_ended(self._name, self._clock_ns() - began_ns)
