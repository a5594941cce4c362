"""One script under watch, in its process."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from harness.attach.autocast import RegionState
from harness.attach.calls import ScriptCalls
from harness.attach.discovery import as_one_model, find_models, live_optimizers, owned_parameters, owns
from harness.attach.ending import ScriptExitError
from harness.attach.guard import ScriptGuard
from harness.attach.hooks import Hooks
from harness.attach.iterators import ScriptIterator
from harness.attach.loaders import LoaderSwitch
from harness.attach.observation import Observation
from harness.attach.passes import LoaderPass
from harness.attach.switches import ScriptSwitches
from harness.attach.training import ScriptTraining
from harness.device.cpu.device import CpuDevice
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.records.run import ModelSizeRow, RunState, SettingsRow
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.watch.inbox import Inbox
from harness.watch.live_settings import LiveSettings
from harness.watch.run_row import first_row
from harness.watch.watch import RunFiles, Watch

# Calls of models before the first optimizer step at which a search for optimizers is worth its time.
_MOST_SEARCHES = 10


class Ending(NamedTuple):
    """The end of a script: what it raised, and the sentence for an end without an error."""

    error: BaseException | None
    state: RunState
    message: str


class Session:
    """The receiver of a script's events, see `harness.attach.hooks.StepEvents`.

    The watch opens at the first call of a model for training. Whatever fails in here is reported, the session
    ends, and training goes on.

    Attributes:
        inbox: takes requests.
        watch: the watch, once training has begun.
    """

    def __init__(
        self, folder: RunFolder, files: RunFiles, guard: ScriptGuard, watching: Callable[[], None]
    ) -> None:
        """`watching` is called when the watch takes over the heartbeat."""
        self._guard = guard
        guard.report = self._report
        self._folder = folder
        self._files = files
        self._watching = watching
        self._thread: int | None = None
        self._searches = 0
        self._seen: list[nn.Module] = []
        self._is_discovering = True
        self._observation: Observation | None = None
        self._loaders = LoaderSwitch(guard)
        self._stack = ExitStack()
        self._cpu = CpuDevice.open()
        self._cpu.begin_memory()
        self.inbox = Inbox()
        self.watch: Watch | None = None
        self._hooks = Hooks(self)
        os.register_at_fork(after_in_child=guard.leave)

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        return self._guard.is_on and self._thread in (None, threading.get_ident())

    def loader_opened(
        self, loader: DataLoader[Any], open_iterator: Callable[[], Iterator[Any]]
    ) -> Iterator[Any]:
        """Return the iterator of a loader, which reports its batches."""
        observation = self._observation
        if observation is not None:
            self._guard.run(observation.batch_requested)
        batches = self._loaders.open(loader, open_iterator)
        if observation is not None:
            self._guard.run(observation.loader_ended)
        return ScriptIterator(batches, self)

    def fetch(self, batches: LoaderPass) -> Any:
        """Return the next batch of a loader."""
        observation = self._observation
        if observation is not None:
            self._guard.run(observation.batch_requested)
        try:
            batch = next(batches) if observation is None else observation.fetch(batches)
        except BaseException:
            self._loaders.ended(batches)
            if observation is not None:
                self._guard.run(observation.loader_ended)
            raise
        self._loaders.delivered(batches)
        if observation is not None:
            self._guard.run(observation.batch_arrived, batch)
        return batch

    def model_seen(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called from outside of any other module: the first one that trains opens the watch."""
        # Checkpointed activations are computed again by a part of a model, within the backward pass.
        if torch._C._current_graph_task_id() == -1:
            self._guard.run(self._discover, model, inputs)

    def model_called(self, model: nn.Module, inputs: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Return the output of a model's `call`."""
        observation = self._observation
        if observation is None:
            return call()
        self._loaders.model_called(is_training=model.training and torch.is_grad_enabled())
        self._guard.run(observation.forward_began, model, inputs)
        return observation.run_forward(call)

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        return None if self._observation is None else self._observation.region_entered(region)

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss."""
        if self._observation is not None:
            self._observation.loss_scaled(loss, scaled)

    def gradients_requested(self, loss: Tensor | None, call: Callable[[], Any]) -> None:
        """Compute gradients by `call`."""
        observation = self._observation
        if observation is None:
            call()
            return
        self._loaders.gradients_requested()
        self._guard.run(observation.backward_began, loss)
        observation.run_backward(loss, call)
        self._guard.run(observation.backward_ended)

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step, at the latest with this the training begins."""
        if self._observation is None:
            self._guard.run(self._begin, [optimizer])
        if self._observation is not None:
            self._guard.run(self._observation.update_began, optimizer)

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped. Raises ScriptStopped where the run is to end."""
        if self._observation is None:
            return
        if self._is_discovering:
            self._is_discovering = False
            self._guard.run(self._follow)
        self._guard.run(self._observation.update_ended, optimizer)

    def scaler_stepped(self, optimizer: torch.optim.Optimizer, call: Callable[[], Any]) -> Any:
        """Return the result of a GradScaler's step."""
        observation = self._observation
        before = None if observation is None else observation.updates
        result = call()
        if observation is not None and observation.updates == before:
            self._guard.run(observation.update_skipped, optimizer)
        return result

    def end(self, error: BaseException | None) -> None:
        """Record the end of the script, which `error` made, and restore torch's entry points."""
        self._guard.leave()
        self._hooks.close()
        if self.watch is None:
            self._open_watch(self._cpu, Settings(), "{}")
        assert self.watch is not None
        ending = ending_of(error, self.watch.context.last_step)
        if ending.error is None:
            self._end_well(self.watch, ending)
        stack, self._stack, failure = self._stack, ExitStack(), ending.error
        with suppress(*(() if failure is None else (type(failure),))):
            stack.__exit__(
                None if failure is None else type(failure),
                failure,
                None if failure is None else failure.__traceback__,
            )
        self._observation = None  # The hook of forks refers to this session for as long as the process lives.

    def _end_well(self, watch: Watch, ending: Ending) -> None:
        if self._observation is None:
            watch.context.journal.finish(ending.state, ending.message, time.time_ns())
            return
        boundary = self._observation.steps.boundary
        if boundary.outcome is None:
            boundary.end(ending.state, ending.message)

    def _discover(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._observation is None:
            if self._searches == _MOST_SEARCHES or not (model.training and torch.is_grad_enabled()):
                return
            self._searches += 1
            optimizers = live_optimizers()
            if not owns(model, owned_parameters(optimizers)):
                return
            self._begin(optimizers)
        observation = self._observation
        if observation is not None and owns(model, owned_parameters(observation.training.optimizers)):
            if not any(model is one for one in self._seen):
                self._seen.append(model)
            observation.forward_began(model, inputs)

    def _begin(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Open the watch over the models of `optimizers`."""
        self._thread = threading.get_ident()
        models = find_models(owned_parameters(optimizers))
        model = as_one_model(models)
        place = next(weight for group in optimizers[0].param_groups for weight in group["params"]).device
        device: Device = self._cpu if place.type == "cpu" else open_device(str(place), owns_process=False)
        self._loaders.begin()
        training = ScriptTraining(model, optimizers, Settings(), device.torch_device, ScriptCalls())
        training.loaders, training.iterators = self._loaders.loaders, self._loaders.iterators
        switches = ScriptSwitches(training, device, self._loaders)
        settings = training.settings
        recorded = json.dumps(switches.recorded(settings))
        watch = self._open_watch(device, settings, recorded)
        context = watch.context
        context.journal.put(SettingsRow(1, 1, 0, recorded, "{}", None))
        context.journal.put(ModelSizeRow(sum(p.numel() for p in model.parameters() if p.requires_grad)))
        live = LiveSettings(context, switches)
        steps = self._stack.enter_context(watch.observe(training, [live]))
        self._observation = Observation(context, steps, training, switches, live)

    def _open_watch(self, device: Device, settings: Settings, recorded: str) -> Watch:
        request = self._folder.request()
        row = first_row(request.run_id, request.name, recorded, device)
        self._watching()
        self.watch = watch = self._stack.enter_context(Watch(self._files, device, row, settings, self.inbox))
        return watch

    def _follow(self) -> None:
        """From now on follow the models that the script calls, instead of all modules."""
        assert self._observation is not None
        training = self._observation.training
        self._hooks.follow(self._seen or find_models(owned_parameters(training.optimizers)))

    def _report(self, message: str) -> None:
        if self._observation is not None:
            self._observation.leave()
        if self.watch is not None:
            self.watch.context.warn("no longer followed", message)


def ending_of(error: BaseException | None, steps: int) -> Ending:
    """Return the end that a script's error makes; None: it ran to its end after `steps` steps."""
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        if code != 0:
            failure = ScriptExitError(f"The script exited with {code!r}.")
            return Ending(failure.with_traceback(error.__traceback__), RunState.FAILED, str(failure))
        error = None
    if isinstance(error, KeyboardInterrupt):
        return Ending(None, RunState.STOPPED, "Stopped by Ctrl-C.")
    if error is not None:
        return Ending(error, RunState.FAILED, str(error))
    if not steps:
        return Ending(None, RunState.FINISHED, "The script ended before its first optimizer step.")
    return Ending(None, RunState.FINISHED, f"The script ended after {steps:,} steps.")
