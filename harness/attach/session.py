"""One script under watch, in its process."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from harness.attach.autocast import RegionState
from harness.attach.baseline import ScriptBaseline
from harness.attach.batches import sizes_of
from harness.attach.calls import ScriptCalls
from harness.attach.declared_settings import ScriptLiveSettings
from harness.attach.discovery import (
    as_one_model,
    find_models,
    live_optimizers,
    owned_parameters,
    owns,
    replicas,
    training_device,
    wraps_trained,
)
from harness.attach.ending import Ending, ending_of
from harness.attach.entries import StepEntries, computes_gradients
from harness.attach.followed_models import FollowedModels
from harness.attach.guard import EndingGuard, ScriptGuard
from harness.attach.hooks import Hooks
from harness.attach.iterators import ScriptIterator
from harness.attach.loaders import LoaderSwitch
from harness.attach.observation import Observation
from harness.attach.opening import ScriptRecord
from harness.attach.passes import LoaderPass, OpenIterator
from harness.attach.plain_observation import PlainObservation
from harness.attach.plain_step import PlainStep
from harness.attach.recording import record_size
from harness.attach.remarks import Remarks
from harness.attach.switches import ScriptSwitches
from harness.attach.training import ScriptTraining
from harness.attach.updates import accumulates_gradients, changes_nothing
from harness.device.cpu.device import CpuDevice
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.records.run import SettingsRow
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.watch.inbox import Inbox
from harness.watch.jobs.judging import Judging
from harness.watch.measuring import Measuring
from harness.watch.watch import RunFiles, Watch

if TYPE_CHECKING:
    from harness.ranks.member import RankMember  # Not every build of torch has torch.distributed.

# Calls, and backward passes, since an optimizer was created at which a search for one is worth its time.
_MOST_SEARCHES = 10


class Session:
    """The receiver of a script's events, see `harness.attach.hooks.StepEvents`.

    The watch opens at the first call of a model for training. Whatever fails in here is reported, the session
    ends, and training goes on.

    Attributes:
        inbox: takes requests.
        watch: the watch, once training has begun.
        plain: the step under way, as long as it is a plain one.
        remarks: takes what the script says by calls of `stepscope`.
    """

    def __init__(
        self,
        folder: RunFolder,
        files: RunFiles,
        guard: ScriptGuard,
        end_heartbeat: Callable[[], None],
        member: "RankMember | None" = None,
        *,
        has_tensors: bool = True,
    ) -> None:
        """`end_heartbeat` is called once the watch is open, which beats by itself; `member` is this process
        among the ranks of the run; `has_tensors`: the script may have tensors already."""
        self._guard = guard
        self.watch: Watch | None = None
        guard.report = self._report
        self._searches_left = self._gradient_searches_left = _MOST_SEARCHES
        self._models = FollowedModels()
        self._called_sizes: tuple[int | None, int | None] = (None, None)
        self._clears_gradients = self._has_other_thread = self._has_ended = False
        self._observation: Observation | None = None
        self._loaders = LoaderSwitch(guard, changes_together=member is not None)
        self._stack = ExitStack()
        self._member = member
        self._cpu = CpuDevice.open()
        self._baseline = ScriptBaseline(self._cpu, guard, has_tensors=has_tensors)
        self.inbox = Inbox() if member is None else member.inbox
        self._record = ScriptRecord(folder, files, self.inbox, member, end_heartbeat)
        self.remarks = Remarks(guard)
        self.plain = PlainStep(guard)
        self._entries = StepEntries(guard, self, self.plain)
        self._entries.on_compile = self.remarks.hide_from_compiler
        self._hooks = Hooks(self, self._entries)
        os.register_at_fork(after_in_child=guard.leave)

    def begin(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Open the watch over `models` and `optimizers`, unless it is open."""
        if self._observation is None:
            # Which modules are called shows in the first step: it may be a module of theirs.
            self._guard.run(self._begin, list(optimizers), models)

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        return self._guard.follows()

    def loader_opened(self, loader: DataLoader[Any], open_iterator: OpenIterator) -> Iterator[Any]:
        """Return the iterator of a loader, which reports its batches."""
        observation = self._observation
        if observation is not None:
            self._guard.run(observation.batch_requested, loader)
        try:
            batches = self._loaders.open(loader, open_iterator)
        finally:
            if observation is not None:
                self._guard.run(observation.batch_missed)
        return ScriptIterator(batches, self._entries)

    def loader_opened_itself(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        """Return the iterator of a loader that has opened `batches` by itself; it reports its batches."""
        return ScriptIterator(self._loaders.follow(loader, batches), self._entries)

    def early_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of a loader, before the training has begun or on another thread."""
        if not self.follows():
            return next(batches)
        try:
            batch = next(batches)
        except BaseException:
            self._guard.run(self._loaders.ended, batches)
            raise
        self._loaders.feeding.delivered(batches)
        batches.early_samples.append(self._entries.count_samples(batches, batch) or 0)
        if not torch.is_grad_enabled():
            self._loaders.feeding.has_evaluated = True
        return batch

    def model_called(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called from outside of any other module: the first one that trains opens the watch."""
        if not computes_gradients():
            self._guard.run(self._discover, model, inputs)

    def call_model(self, model: nn.Module, call: Callable[[], Any]) -> Any:
        """Return the output of a module that is called from outside, by `call`. A mixed precision that was
        requested before the first step is in effect in all calls of that step."""
        observation = self._observation
        if observation is None or observation.autocast.wrapper is None or not self._models.has_called(model):
            return call()
        return observation.calls.call_model(observation.autocast.run_forward, call)

    def model_returned(self, model: nn.Module) -> None:
        """A module that was called from outside has returned."""
        if self._observation is not None and self._models.has_called(model):
            self._guard.run(self._observation.tracker.forward_ended, torch.is_grad_enabled())

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        return None if self._observation is None else self._observation.region_entered(region)

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss."""
        if self._observation is not None:
            self._observation.loss_scaled(loss, scaled)

    def early_gradients(self) -> None:
        """Gradients are about to be computed, before the training has begun."""
        if self.follows():
            self._record.has_trained = True
            if self._gradient_searches_left or self._models.called:
                self._guard.run(self._discover_by_gradients)

    def gradients_cleared(self) -> None:
        """The gradients of a model were cleared. Raises ScriptStopped where the run is to end."""
        self._clears_gradients = True
        if self._observation is not None:
            self._guard.run(self._observation.gradients_cleared)

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was created: when training has begun, it is for another model or another phase."""
        self._searches_left = self._gradient_searches_left = _MOST_SEARCHES
        if self._observation is not None:
            self._guard.run(self._optimizer_created, self._observation, optimizer)

    def early_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step: the training begins, unless it has; then this is another thread."""
        if self.follows():
            self._guard.run(self._begin_within_step, [optimizer])
        elif self._guard.is_watching and self.watch is not None and not self._has_other_thread:
            self._has_other_thread = True
            self.watch.context.warn(
                "second training thread",
                "An optimizer stepped in another thread than the one that trained first, or that called "
                "stepscope.watch: such steps are not followed.",
            )

    def scaler_stepped(self, optimizer: torch.optim.Optimizer, call: Callable[[], Any]) -> Any:
        """Return the result of a GradScaler's step."""
        if (observation := self._observation) is None:
            return call()
        self._guard.run(observation.leave_plain_step)  # The updates of quiet steps are counted later.
        before, result = observation.updates, call()
        if observation.updates == before and not self._guard.run(changes_nothing, optimizer):
            self._guard.run(observation.update_skipped, optimizer)
        return result

    def end(self, error: BaseException | None) -> None:
        """Record the end of the script, which `error` made, and restore torch's entry points. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        failure_message, observation = self._guard.message, self._observation
        self._guard.leave()
        self._hooks.close()
        self._baseline.close()
        if observation is not None and failure_message is None:
            if observation.is_discovering and error is not None:
                EndingGuard().run(observation.training.find_models)  # Those of an optimizer's first step.
            EndingGuard().run(self._entries.caught.ended, observation, error)
            EndingGuard().run(observation.finish)
        if self.watch is None:
            self._record.end_unwatched(self._cpu, error, failure_message)
        else:
            self._end_watch(self.watch, error, failure_message)
        # The hook of forks refers to this session for as long as the process lives.
        self._observation = None
        self._entries.follow(None)

    def _end_watch(self, watch: Watch, error: BaseException | None, failure_message: str | None) -> None:
        observation = self._observation
        is_stopped = observation is not None and observation.steps.boundary.outcome is not None
        has_trained = observation is not None and observation.tracker.has_trained
        ending = ending_of(
            error, watch.context.last_step, failure_message, is_stopped, has_trained, self._has_other_thread
        )
        if ending.error is None:
            self._end_well(watch, ending)
        stack, self._stack, failure = self._stack, ExitStack(), ending.error
        kind, trace = (None, None) if failure is None else (type(failure), failure.__traceback__)
        with suppress(*(() if kind is None else (kind,))):
            stack.__exit__(kind, failure, trace)

    def _end_well(self, watch: Watch, ending: Ending) -> None:
        if self._observation is None:
            watch.context.journal.finish(ending.state, ending.message, time.time_ns())
            return
        boundary = self._observation.steps.boundary
        if boundary.outcome is None:
            boundary.end(ending.state, ending.message)

    def _discover(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._observation is None:
            is_training = model.training or wraps_trained(model)
            if not (is_training and torch.is_grad_enabled()):
                self._loaders.feeding.evaluate(in_evaluation_mode=not is_training)
                return
            if not self._searches_left or not accumulates_gradients(model):
                return  # A transform of the dataset has nothing to train.
            self._searches_left -= 1
            optimizers = live_optimizers()
            if not owns(model, owned_parameters(optimizers)):
                self._models.add_called(model)
                self._called_sizes = sizes_of(inputs)
                return
            if not self._begin_within_step(optimizers):
                return
        observation = self._observation
        if observation is not None and owns(model, owned_parameters(observation.training.optimizers)):
            self._models.add_called(model)
            observation.forward_began(model, inputs)

    def _discover_by_gradients(self) -> None:
        """A backward pass, and no call of a model for training was seen, or of one without an optimizer: its
        script updates it by itself."""
        self._gradient_searches_left = max(0, self._gradient_searches_left - 1)
        owned = owned_parameters(optimizers := live_optimizers())
        called = self._models.called
        if called and not any(owns(model, owned) for model in called):
            if not self._begin_within_step([], called):
                return
            if self._observation is not None:
                sizes = self._observation.sizes
                sizes.leader, sizes.inputs = id(self._models.called[-1]), self._called_sizes
            self._follow()
        elif optimizers:
            self._begin_within_step(optimizers)

    def _optimizer_created(self, observation: Observation, optimizer: torch.optim.Optimizer) -> None:
        # Models are searched for at the next batch or call: there may be an optimizer for each parameter.
        if observation.training.add_optimizer(optimizer):
            observation.optimizer_created(optimizer)
            is_first = observation.manual is not None and observation.step == 1
            if is_first and owns(observation.training.model, owned_parameters([optimizer])):
                observation.manual = None  # The gradients so far were for no update, as those of a reference.

    def _begin_within_step(
        self, optimizers: list[torch.optim.Optimizer], models: Sequence[nn.Module] = ()
    ) -> bool:
        """Begin as `_begin` does; a batch of the first step has been loaded before."""
        has_begun = self._begin(optimizers, models)
        if has_begun and self._observation is not None:
            self._observation.sizes.begin_after(self._loaders.feeding.early_samples)
        return has_begun

    def _begin(self, optimizers: list[torch.optim.Optimizer], models: Sequence[nn.Module] = ()) -> bool:
        """Open the watch over the models of `optimizers`, or over `models` where there is no optimizer. False
        if another thread does so at this moment."""
        if not self._guard.claim():
            return False
        owned = owned_parameters(optimizers)
        called = [model for model in self._models.called if owns(model, owned)] or list(models)
        model = as_one_model(models or find_models(owned) or called)
        self._models.called = called
        device_name = str(training_device(model, optimizers))
        device: Device = self._cpu if device_name == "cpu" else open_device(device_name, owns_process=False)
        self._loaders.begin()
        self._baseline.training_begins()
        training = ScriptTraining(model, optimizers, Settings(), ScriptCalls())
        training.loaders, training.iterators = self._loaders.loaders, self._loaders.iterators
        switches = ScriptSwitches(training, device, self._loaders, self._guard.run)
        settings = training.settings
        recorded = json.dumps(switches.recorded(settings))
        self.watch = watch = self._stack.enter_context(self._record.open_watch(device, settings, recorded))
        context = watch.context
        context.journal.put(SettingsRow(1, 1, 0, recorded, "{}", None))
        record_size(watch.context, training)
        live = ScriptLiveSettings(context, switches, self._member and self._member.consent)
        # Entered before the steps, so that it ends after them, when the device is idle.
        self._stack.callback(self.remarks.close)
        if self._member is None:
            measuring = Measuring(context, live)
            judging = Judging(context, watch.folder, measuring.to_judge)
            observing = watch.observe(training, [live, measuring], jobs=[judging.job])
        else:
            commands = self._member.commands
            actions = [live, commands.agreement(context)]
            observing = watch.observe(training, actions, end_in_time=commands.end_in_time)
        steps = self._stack.enter_context(observing)
        self._observation = observation = PlainObservation(
            self.plain,
            context,
            self.inbox,
            steps,
            training,
            switches,
            live,
            self._follow,
            clears_gradients=self._clears_gradients,
        )
        self._entries.follow(observation)
        self.remarks.open(context, observation, live)
        self._baseline.training_has_begun()
        return True

    def _follow(self) -> None:
        """From now on follow the models that are called, and those of optimizers without any of these."""
        observation = self._observation
        assert observation is not None
        training, missed = observation.training, observation.missed
        observation.is_discovering = missed.postpone_search()
        if observation.is_discovering:
            return
        models = self._models.extend(training, missed, self._entries)
        self._hooks.follow(models)
        assert self.watch is not None
        record_size(self.watch.context, training)
        observation.records.record_new_rates(observation.step)
        if self._member is not None:
            for replica in replicas(models):
                observation.steps.follow_ranks(replica)

    def _report(self, message: str) -> None:
        if self._observation is not None:
            self._observation.leave()
        if self.watch is not None:
            self.watch.context.warn("no longer followed", message)
