"""A run of Stepscope over the training of this process."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from harness.attach.active import active
from harness.attach.ending import NextWatch
from harness.attach.guard import ScriptGuard
from harness.attach.launch import DISABLED_VARIABLE, Attachment, attaching, origin_of, print_begin
from harness.notices import print_notice
from harness.store.home import Home
from stepscope.arguments import check_name, checked_home, modules_of, optimizers_of, this_script
from stepscope.notebook import after_each_cell, in_notebook, show
from stepscope.process import ProcessEnd, error_passed_on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from harness.attach.remarks import Remarks

Batch = TypeVar("Batch")
Value = TypeVar("Value", bound=bool | int | float | str)

# Held while a run begins or ends: torch is patched for one run at a time, also where several threads train.
_TRANSITION = threading.RLock()


def watch(
    model: "nn.Module | Sequence[nn.Module]",
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]",
    *,
    name: str | None = None,
    home: str | os.PathLike[str] | None = None,
) -> "Run":
    """Open a run over a model and its optimizer, or over several of each.

    Under `stepscope run` this is the run of the script, and `name` and `home` are not used, which a warning
    in the run says. Otherwise a run begins in `home` (default: STEPSCOPE_HOME, else the user's data folder)
    and lasts until `close`, the end of the `with` block, the next `watch`, or the end of the process. A
    `name` that another run has gets a number: a script, or a cell of a notebook, may run again. With
    STEPSCOPE_DISABLED=1 the run does nothing.

    Raises ValueError for anything but modules and optimizers, for a name that is no text, and for a home that
    is no path,
    `harness.errors.UsageError` for a name that is not usable, and `harness.errors.HomeError` where no run can
    be created.
    """
    models, optimizers = modules_of(model), optimizers_of(optimizer)
    check_name(name)
    if os.environ.get(DISABLED_VARIABLE) == "1":
        return Run(None, None)
    with _TRANSITION:
        if Run._newest is not None:
            Run._newest._end_abandoned(Run._newest._last_interrupt() or NextWatch())
        if (attachment := active()) is not None:
            attachment.warn_of_unused(name, checked_home(home))
            _begin(attachment, models, optimizers)
            return Run(attachment, None)
        run = _open(models, optimizers, name, Home.locate(checked_home(home), os.environ))
    if in_notebook():
        show(run)
    else:
        print_begin("this", run.name, run.id)
    return run


class Run:
    """A run, from `watch`. As a context manager it ends with its block, also by the error raised in there.

    Every method is for the thread that trains.
    """

    # The run that this process has opened and not closed.
    _newest: "Run | None" = None

    def __init__(self, attachment: Attachment | None, owned: ExitStack | None) -> None:
        self._attachment = attachment
        self._owned = owned
        self._pid = os.getpid()
        session = None if attachment is None else attachment.session
        self._remarks: Remarks | None = None if session is None else session.remarks
        self._was_stopped = False
        # Whether a later loop over the steps is to say that the run has ended.
        self._is_over = False
        # Of the cells of a notebook: what interrupted the last one that trained, how far they have come, and
        # whether an error of one has ended the run.
        self._interrupt: BaseException | None = None
        self._position: tuple[int, bool] | None = None
        self._is_over_by_cell = False
        if owned is not None:
            Run._newest = self
            self._process_end = ProcessEnd(self._end_abandoned)
            after_each_cell(self._cell_ended)

    @property
    def name(self) -> str:
        """The name of the run; empty when Stepscope is disabled."""
        return "" if self._attachment is None else self._attachment.name

    @property
    def id(self) -> str:
        """The id of the run, which is the name of its folder; empty when Stepscope is disabled."""
        return "" if self._attachment is None else self._attachment.run_id

    @property
    def is_stopped(self) -> bool:
        """Whether a person has stopped the run, or it has taken its last step."""
        return self._was_stopped if self._remarks is None else self._remarks.is_stopped

    def steps(self, batches: Iterable[Batch]) -> "Iterable[Batch]":
        """Return `batches` for a loop over them, which ends where a person stops the run. After a stop there
        are none.

        The time that each batch takes is the data wait of its step. An iteration is one micro-batch: a step
        ends with the step of the optimizer.
        """
        return _Steps(self, batches)

    def log(self, values: Mapping[str, object] | None = None, /, **scalars: object) -> None:
        """Record numbers at the step under way; after `optimizer.step()`, at the step that has just ended.

        A value is a number or a tensor with one element; one on a GPU is read later, without waiting. `loss`,
        when logged before `optimizer.step()`, is also the loss of the step. Raises ValueError for other
        values.
        """
        if self._remarks is None:
            return
        if values is not None:
            try:
                scalars = {**values, **scalars}
            except TypeError:
                raise ValueError(
                    f"values cannot be {type(values).__name__}; give a dict of names and numbers."
                ) from None
        self._remarks.log(scalars)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context that measures a part of the step: the scalar `phase/<name>`, in milliseconds on
        the CPU's clock, added up over the step. It also counts in the phase of the step around it.
        Raises ValueError for a name that `log` could not take."""
        return nullcontext() if self._remarks is None else self._remarks.phase(name)

    def autocast(self) -> AbstractContextManager[object]:
        """Return `torch.autocast` as the AMP setting of the run says; a context without effect when off."""
        return nullcontext() if self._remarks is None else self._remarks.autocast()

    def setting(
        self,
        name: str,
        default: Value,
        *,
        bounds: tuple[float | None, float | None] | None = None,
        choices: Sequence[str] | None = None,
        label: str | None = None,
    ) -> "Setting[Value]":
        """Declare a setting that can be changed while the run goes on, of the kind of its `default`.

        `bounds` are the lowest and the highest number, None: no bound; a text needs its `choices`, different
        printable texts of up to 100 letters, as is the `label`. Raises ValueError for a declaration that
        cannot be.
        """
        from harness.attach.declaration import declare

        declaration = declare(name, default, bounds, choices, label)
        # A value is of the kind of its default.
        if self._remarks is None or not self._remarks.is_open:
            return Setting(name, partial(_constant, cast("Value", declaration.default)))
        self._remarks.declare(declaration)
        return Setting(name, partial(cast("Callable[[str], Value]", self._remarks.value), name))

    def event(self, text: str) -> None:
        """Record an event at the step under way, with a marker in the charts."""
        if self._remarks is not None:
            self._remarks.note(text)

    def handle_stop(self) -> None:
        """Let a stop raise nothing from now on: the loop ends itself where `is_stopped` is true, as that of
        `steps` does. Otherwise the step after which a person stops the run raises a KeyboardInterrupt."""
        if self._remarks is not None:
            self._remarks.handle_stop()

    def close(self, error: BaseException | None = None) -> None:
        """End the run, by `error` if there was one, and leave torch as it was. Without `error` it is the one
        that a `finally` passes on, if `close` is called there, or the interrupt of the last cell that
        trained. Idempotent; under `stepscope run` the run ends with the script. Raises ValueError where
        `error` is no exception."""
        if error is not None and not isinstance(error, BaseException):
            raise ValueError(f"The error cannot be {error!r}; give the exception that ended it, or none.")
        self._end(error or error_passed_on() or self._last_interrupt())

    def _end(self, error: BaseException | None) -> None:
        if os.getpid() != self._pid:
            return
        with _TRANSITION:
            stack, self._owned = self._owned, None
            if stack is None:
                return
            if Run._newest is self:
                Run._newest = None
            self._process_end.close(error)
            self._was_stopped, self._remarks = self.is_stopped, None
            self._is_over = not self._was_stopped  # After a stop the loop is empty.
            assert self._attachment is not None
            guard = ScriptGuard()
            guard.run(self._attachment.end, error)
            guard.run(stack.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A generator around the block that is closed early ends as regularly as by a `break`.
        self._end(None if isinstance(error, GeneratorExit) else error)

    def __deepcopy__(self, _memo: object) -> Self:
        """Return the run itself: a copy of a model that has it trains under the same run."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """In a file or in another process it is a run that does nothing, as when Stepscope is disabled."""
        return Run, (None, None)

    def _repr_html_(self) -> str:
        from stepscope.notebook import link

        return link(self.name, self.id)

    def _end_abandoned(self, error: BaseException | None) -> None:
        """End the run, which the script has not closed, by `error` or by what interrupted its last cell."""
        self._end(error or self._last_interrupt())

    def _last_interrupt(self) -> BaseException | None:
        """Return what interrupted the last cell that trained; None where the cell under way goes on."""
        goes_on = self._remarks is not None and self._remarks.position != self._position
        return None if goes_on else self._interrupt

    def _cell_ended(self, error: BaseException | None) -> bool:
        """A cell of a notebook has ended, by `error` if there was one: a stop ends the run, which would wait
        for more steps, and so does an error of a cell that trained. After an interrupt the next cell may go
        on. Return whether the run does."""
        if self._remarks is None:
            return False
        has_trained, self._position = self._remarks.position != self._position, self._remarks.position
        if self.is_stopped:
            self._end(None)
        elif has_trained and isinstance(error, Exception | SystemExit):
            self._is_over_by_cell = True
            self._end(error)
        elif has_trained:
            # A new one, as the frames of a traceback keep their tensors.
            self._interrupt = None if error is None else KeyboardInterrupt()
        return self._owned is not None

    def _report_over(self) -> None:
        if self._is_over:
            self._is_over = False
            how = " by the error of a cell" if self._is_over_by_cell else ""
            print_notice(f"This run has ended{how}: the loop is not watched. Call stepscope.watch.")


class Setting(Generic[Value]):
    """A setting of the script's own, from `Run.setting`. A call returns the value in effect.

    The setting is not its value: where it is used as a condition or compared, which would be true or false
    whatever the value is, it raises TypeError.
    """

    def __init__(self, name: str, read: Callable[[], Value]) -> None:
        self.name = name
        self._read = read

    def __call__(self) -> Value:
        """Return the value in effect."""
        return self._read()

    def __bool__(self) -> bool:
        raise self._is_no_value()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise self._is_no_value()

    __hash__ = object.__hash__

    def __deepcopy__(self, _memo: object) -> Self:
        """Return the setting itself: a copy of a model that has it follows the same run."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """In a file or in another process the setting has the value that is in effect now."""
        return Setting, (self.name, partial(_constant, self()))

    def _is_no_value(self) -> TypeError:
        return TypeError(f"The setting {self.name!r} is not its value: call it, as in setting().")

    def __repr__(self) -> str:
        return f"Setting({self.name}={self()!r})"


def _constant(value: Value) -> Value:
    return value


class _Steps(Generic[Batch]):
    """See `Run.steps`. It has the length of what it iterates over."""

    def __init__(self, run: Run, batches: Iterable[Batch]) -> None:
        self._run = run
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # raises TypeError where there is no length

    def __iter__(self) -> Iterator[Batch]:
        remarks = self._run._remarks  # The class is part of the run's module.
        if remarks is None:
            self._run._report_over()
            return iter(()) if self._run.is_stopped else iter(self._batches)
        remarks.restart_first_step()
        self._run._position = None  # A cell trains, even if its first batch fails.
        if self._run.is_stopped:
            return self._until_stopped(remarks, iter(()))
        # Opened now, as without the run: workers start here, and random numbers are drawn.
        return self._until_stopped(remarks, remarks.open_batches(self._batches))

    def _until_stopped(self, remarks: "Remarks", batches: Iterator[Batch]) -> Iterator[Batch]:
        remarks.loop_began()
        try:
            for batch in batches:
                yield batch
                del batch  # A loop that releases its batch has it released before the next one is loaded.
                if remarks.is_open and remarks.observation.has_ended:  # As `is_stopped`, without a call.
                    return
        finally:
            if remarks.loop_ended() and remarks.is_stopped:
                self._run._end(None)


def _open(
    models: "Sequence[nn.Module]",
    optimizers: "Sequence[torch.optim.Optimizer]",
    name: str | None,
    home: Home,
) -> Run:
    folder = home.create_for_script(name, origin_of(this_script()), time.time_ns(), may_repeat=True)
    stack = ExitStack()
    attachment = stack.enter_context(attaching(folder, os.environ))
    attachment.attach()
    _begin(attachment, models, optimizers)
    return Run(attachment, stack)


def _begin(
    attachment: Attachment, models: "Sequence[nn.Module]", optimizers: "Sequence[torch.optim.Optimizer]"
) -> None:
    if attachment.session is not None:
        attachment.session.begin(models, optimizers)
