"""The entry points of a followed step: the functions that stand in for those of torch that every step calls.

They are flat: between two operations of a training the processor's caches hold nothing of this code, and
every Python call takes several times as long as in a tight loop. So an entry records the time of an event of
a plain step (`harness.attach.plain_step`) by itself, and leaves all others to the observation: they leave
for a function of their own, as do those before the training or on another thread.

The events of a step, in order: `next_batch`, `call` of the model, `backward`, and the begin and the end of
the update, which ends the step. `harness.attach.iterators` has the batches of plain steps.
"""

from collections.abc import Callable, Iterable
from functools import partial, wraps
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.utils.data import DataLoader

from harness.attach.batches import sizes_of
from harness.attach.caught_memory import CaughtMemoryErrors
from harness.attach.discovery import wraps_trained
from harness.attach.early_events import EarlyEvents
from harness.attach.guard import ScriptGuard
from harness.attach.numbering import CALLED, GRADIENTS_BEGAN, GRADIENTS_ENDED, RETURNED, UPDATE_BEGAN
from harness.attach.passes import LoaderPass
from harness.attach.plain_observation import PlainObservation
from harness.attach.plain_step import PlainStep
from harness.attach.updates import changes_nothing, updates_under_way
from harness.watch.rank_waits import NO_WAITS

UpdateHook = Callable[[torch.optim.Optimizer, Any, Any], None]
_is_grad_enabled = torch.is_grad_enabled
_NO_BACKWARD = -1


class StepEntries:
    """The entry points of one session.

    Attributes:
        observation: receives the events once the training has begun.
        plain: the step under way, as long as it is a plain one.
        guard: the guard of the session.
        on_compile: called when the script compiles for the first time, or is about to.
        caught: follows the memory errors that the script catches.
    """

    def __init__(self, guard: ScriptGuard, early: EarlyEvents, plain: PlainStep) -> None:
        self.observation: PlainObservation | None = None
        self.plain = plain
        self.guard = guard
        self.on_compile: Callable[[], None] = lambda: None
        self._early = early
        self._has_compiled = False
        self._model_ids: set[int] = set()
        # How many updates are under way within one of the same optimizer, or change nothing.
        self._nested = 0
        self.caught = CaughtMemoryErrors(guard)

    def follow(self, observation: PlainObservation | None) -> None:
        """Pass the events to `observation` from now on; None: the training has ended."""
        self.observation = observation
        if observation is None:
            self.caught.close()
        else:
            observation.calls.update_returned = self._update_returned
            observation.training.has_compiled = self._has_compiled
            self.caught.follow(observation)

    def compiler_called(self) -> None:
        """The script has called torch.compile, or is about to; on any thread."""
        self._has_compiled = True
        self.on_compile()
        if (observation := self.observation) is not None:
            observation.training.has_compiled = True
            if get_ident() == self.guard.thread:
                observation.calls.compile()

    def _update_returned(self) -> None:
        if (observation := self.observation) is not None and get_ident() == self.guard.thread:
            self.guard.run(observation.update_returned)

    def add_models(self, models: Iterable[nn.Module]) -> None:
        """Follow the calls of `models` too."""
        self._model_ids.update(map(id, models))

    def leave_models(self, models: Iterable[nn.Module]) -> None:
        """Follow the calls of `models` no longer."""
        self._model_ids.difference_update(map(id, models))

    def forget_models(self) -> None:
        """Follow no model any more. Other modules may get the ids of those that exist no longer."""
        self._model_ids.clear()

    def next_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of a loader; raises StopIteration at its end."""
        observation, guard = self.observation, self.guard
        if observation is None or get_ident() != guard.thread:
            return self._early.early_batch(batches)
        if observation.tracker.is_updating or len(self.plain.times_ns) == UPDATE_BEGAN:
            guard.run(self.caught.check_update, observation)
        calls = observation.calls
        guard.run(observation.batch_requested, batches)
        try:
            batch = next(batches) if calls.next_batch is calls.own_next_batch else calls.fetch(batches)
        except BaseException as error:
            self.batch_missed(batches, None if isinstance(error, StopIteration) else error)
            raise
        self.arrived(batches, batch)
        return batch

    def arrived(self, batches: LoaderPass, batch: Any) -> None:
        """A batch arrived in a step that is not plain."""
        observation = self.observation
        if observation is not None:
            observation.feeding.delivered(batches)
            if self.guard.is_on and not observation.is_loading:
                drawn = batches.drawn_last
                if drawn is None or batch is None:
                    samples = self.count_samples(batches, batch)
                else:
                    samples = len(drawn[-1])
                self.guard.run(observation.batch_arrived, samples, batches)

    def batch_missed(self, batches: LoaderPass, error: BaseException | None = None) -> None:
        """The next batch raised `error`; None: there is none."""
        if (observation := self.observation) is not None:
            self.guard.run(observation.loaders.ended, batches)
            samples = batches.samples_ahead if error is None else 0
            self.guard.run(observation.batch_missed, error is not None, samples or 0)
        if error is not None:
            self.guard.run(self.caught.failed, error, "data loading")

    def count_samples(self, batches: LoaderPass, batch: Any) -> int | None:
        """Return the number of samples in a batch; None: unknown."""
        try:
            if (samples := batches.samples_of(batch)) is not None:
                return samples
        except Exception as error:  # noqa: BLE001  # the guard of the process, inline
            self.guard.failed(error)
        self.plain.reads_sizes = True
        return None

    def changed_length(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of batches of a loader with a changed batch size; None: its own."""
        if (observation := self.observation) is None:
            return None
        length: int | None = self.guard.run(observation.loaders.length, loader)
        return length

    def wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the stand-in for the `__call__` of a class of models."""
        is_torch = original is nn.Module._wrapped_call_impl
        guard, plain = self.guard, self.plain
        times_ns = plain.times_ns

        @wraps(original)
        def call(model: nn.Module, /, *inputs: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():  # In a function that is compiled nothing of ours may be traced.
                return model._call_impl(*inputs, **kwargs) if is_torch else original(model, *inputs, **kwargs)
            is_next = len(times_ns) == plain.events_before_call and id(model) == plain.model_id
            is_plain = is_next and get_ident() == guard.thread and _is_grad_enabled()
            if not (is_plain and (model.training or wraps_trained(model))):
                return self._call(original, model, inputs, kwargs)
            if plain.reads_sizes:
                plain.sizes = sizes_of(inputs or tuple(kwargs.values()))
            if not times_ns:  # No loader feeds the step.
                times_ns.extend((plain.end_ns, plain.end_ns))
            times_ns.append(plain.now())
            try:
                if kwargs or len(inputs) != 1:
                    output = original(model, *inputs, **kwargs)
                else:  # As nearly always, and without further tuples and frames of C.
                    output = original(model, inputs[0])
            except Exception as error:  # Of memory also with a library's own class. Raised again.
                guard.run(self.caught.failed, error, "the forward pass")
                raise
            if len(times_ns) == CALLED:
                times_ns.append(plain.now())
            else:
                self._returned()
            return output

        return call

    def _call(
        self, original: Callable[..., Any], model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a model in a step that is not plain."""
        observation, guard = self.observation, self.guard
        if observation is None or get_ident() != guard.thread or is_compiling():
            return original(model, *inputs, **kwargs)
        if id(model) not in self._model_ids:
            if not (self.plain.times_ns or observation.autocast.is_calling):
                called_with = inputs or tuple(kwargs.values())
                guard.run(observation.other_model_called, model, called_with)
            if id(model) not in self._model_ids:
                return original(model, *inputs, **kwargs)
        if self.caught.is_waiting:
            guard.run(self.caught.went_on, observation)
        if observation.tracker.is_updating or len(self.plain.times_ns) == UPDATE_BEGAN:
            guard.run(self.caught.check_update, observation)
        guard.run(observation.forward_began, model, inputs or tuple(kwargs.values()))
        autocast, calls = observation.autocast, observation.calls
        try:
            if autocast.is_calling or autocast.wrapper is not None or calls.forward is not calls.own_forward:
                output = calls.call_model(autocast.run_forward, partial(original, model, *inputs, **kwargs))
            else:  # As nearly always, and without three further calls.
                autocast.is_calling = True
                try:
                    output = original(model, *inputs, **kwargs)
                finally:
                    autocast.is_calling = False
        except Exception as error:  # As above.
            is_training = (model.training or wraps_trained(model)) and _is_grad_enabled()
            guard.run(self.caught.failed, error, "the forward pass" if is_training else "the evaluation")
            raise
        self._returned()
        return output

    def _returned(self) -> None:
        if (observation := self.observation) is not None and get_ident() == self.guard.thread:
            self.guard.run(observation.tracker.forward_ended, _is_grad_enabled())

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the stand-in for `torch.autograd.backward`."""
        guard, plain = self.guard, self.plain
        times_ns = plain.times_ns

        @wraps(original)
        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *args: Any,
            inputs: Any = None,
            **kwargs: Any,
        ) -> Any:
            is_next = len(times_ns) == RETURNED and type(tensors) is Tensor and not (args or kwargs)
            if not (is_next and get_ident() == guard.thread and tensors.is_cpu):
                arguments = tensors, grad_tensors, retain_graph, create_graph, *args
                compute = partial(original, *arguments, inputs=inputs, **kwargs)
                return self._compute_gradients(compute, tensors)
            try:
                loss = tensors.item() if plain.is_recorded else None
            except RuntimeError:  # It has several elements.
                loss = None
            plain.loss = loss if type(loss) is float else None
            times_ns.append(plain.now())
            try:
                original(tensors, grad_tensors, retain_graph, create_graph, inputs=inputs)
            except BaseException as error:
                self._gradients_failed(error)
                raise
            if len(times_ns) == GRADIENTS_BEGAN:
                times_ns.append(plain.now())
            elif (observation := self.observation) is not None:
                guard.run(observation.backward_ended)
            return None

        return backward

    def _compute_gradients(self, compute: Callable[[], None], tensors: Any) -> None:
        """Compute gradients in a step that is not plain."""
        if self.observation is None:
            self._early.early_gradients()
        observation, guard = self.observation, self.guard
        if observation is None or get_ident() != guard.thread:
            return compute()
        loss = tensors if isinstance(tensors, Tensor) else _first_of(tensors)
        calls = observation.calls
        guard.run(observation.backward_began, loss, loss is tensors)
        autocast = observation.autocast
        if autocast.trial is not None:
            compute = partial(autocast.run_backward, compute, observation.training, observation.step)
        try:
            if calls.backward is calls.own_backward:
                compute()
            else:
                calls.compute_gradients(loss, compute)
        except BaseException as error:
            self._gradients_failed(error)
            raise
        if (observation := self.observation) is not None:
            guard.run(observation.backward_ended)
        return None

    def _gradients_failed(self, error: BaseException) -> None:
        self.guard.run(self.caught.failed, error, "the backward pass")
        if (observation := self.observation) is not None:
            self.guard.run(observation.backward_failed)

    def begin_update(self) -> UpdateHook:
        """Return the hook that torch calls before an optimizer steps: at the latest, the training begins."""
        guard, plain = self.guard, self.plain
        times_ns = plain.times_ns

        def update_began(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            is_followed = get_ident() == guard.thread
            if is_followed and len(times_ns) == GRADIENTS_ENDED and id(optimizer) == plain.optimizer_id:
                times_ns.append(plain.now())
                return
            is_followed = is_followed or self._waits_for_this_thread()
            is_unused = not plain.has_trained and len(times_ns) < CALLED
            is_idle = is_unused and guard.run(changes_nothing, optimizer, args, kwargs)
            if is_idle or (is_followed and self._is_within_update(optimizer)):
                self._nested += is_followed
                return
            self._nested = 0
            if self.observation is None or not is_followed:
                self._early.early_update(optimizer)
            observation = self.observation
            if observation is not None and (is_followed or get_ident() == guard.thread):
                guard.run(observation.update_began, optimizer)

        return update_began

    def end_update(self) -> UpdateHook:
        """Return the hook that torch calls after an optimizer has stepped. It raises ScriptStopped where the
        run is to end."""
        guard, plain = self.guard, self.plain
        times_ns = plain.times_ns

        def update_ended(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if get_ident() != guard.thread and not self._waits_for_this_thread():
                return
            try:
                if len(times_ns) != UPDATE_BEGAN:
                    if self._nested or self.observation is None:
                        self._nested = max(0, self._nested - 1)
                    else:
                        self.observation.update_ended(optimizer)
                    return
                end_ns, step = plain.clock_ns(), plain.ended + 1
                is_due = step >= plain.until_step
                if is_due or (end_ns >= plain.until_ns and not self._measure(step, end_ns)):
                    self._plain_step_ended()
                    return
                step_ns = (plain.end_ns, *times_ns, end_ns)
                times_ns.clear()
                plain.end_ns, plain.ended = end_ns, step
                if plain.is_recorded:
                    loss, (samples, tokens) = plain.loss, plain.sizes
                    if plain.logged_loss is not None:
                        loss, plain.logged_loss = float(plain.logged_loss), None
                    progress = plain.progress
                    progress.last_step, progress.times_ns = step, step_ns
                    waits = NO_WAITS if plain.rank_waits is None else plain.rank_waits.take()
                    samples = plain.samples or samples or 0
                    plain.put((step, step_ns, None, loss, samples, tokens, waits, plain.columns))
                elif (progress := plain.progress).unobserved_ns is not None:
                    samples, tokens = plain.sizes
                    progress.unobserved_ns.append(end_ns)
                    progress.unobserved_samples += plain.samples or samples or 0
                    progress.unobserved_tokens += tokens or 0
                plain.step_finished(step)
            except Exception as error:  # noqa: BLE001  # the guard of the process, inline
                guard.failed(error)

        return update_ended

    def _is_within_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the update that begins is a part of another one of `optimizer`, as where its `step`
        calls that of its base class."""
        observation, is_plain = self.observation, len(self.plain.times_ns) == UPDATE_BEGAN
        if observation is None or not (is_plain or observation.tracker.is_updating):
            return False
        is_within = sum(one is optimizer for one in updates_under_way()) > 1
        if is_plain and is_within:
            self.guard.run(observation.leave_plain_step)
        return is_within

    def _waits_for_this_thread(self) -> bool:
        """Return whether the followed thread waits for gradients that the calling one computes: autograd has
        threads of its own for GPUs, which also run the hooks of parameters."""
        observation = self.observation
        return observation is not None and observation.is_in_backward and computes_gradients()

    def _measure(self, step: int, end_ns: int) -> bool:
        return self.observation is not None and self.observation.measure(step, end_ns)

    def _plain_step_ended(self) -> None:
        if self.observation is not None:
            self.observation.plain_step_ended()


def computes_gradients() -> bool:
    """Return whether the calling thread is within a backward pass: in a hook, or in a part of the forward
    pass that an activation checkpoint computes again."""
    return torch._C._current_graph_task_id() != _NO_BACKWARD


def _first_of(tensors: Iterable[Any]) -> Tensor | None:
    loss = next(iter(tensors), None)
    return loss if isinstance(loss, Tensor) else None
