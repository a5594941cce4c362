"""The trained workload: model, optimizer and batches, under settings that can change between steps."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.autograd.graph import Node, get_gradient_edge, save_on_cpu

from harness.analysis.oom.report import OomPhase
from harness.data.loading import Loader, open_loader
from harness.data.source import DataSource
from harness.device.protocol import TensorDevice
from harness.errors import SettingError
from harness.models.base import LossModel
from harness.records.ranks import ALONE, RankPlace
from harness.records.run import AmpMode, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Effect, MatmulPrecision
from harness.settings.injection import parse_injection
from harness.settings.resolve import check_fit
from harness.settings.spec import SPECS
from harness.train.compiling import compiled
from harness.train.data_parallel import data_parallel
from harness.train.inject import InjectedFault, leaky
from harness.train.optimizers import build_optimizer, lay_out_like_weights, rebuilt_optimizer
from harness.watch.compiler import has_compiled
from harness.watch.training import Replaced, Wrapper

if TYPE_CHECKING:
    from harness.train.replica import Replica

Batch = tuple[Tensor, Tensor]
Args = ParamSpec("Args")
Result = TypeVar("Result")

_AMP_DTYPES = {AmpMode.BF16: torch.bfloat16, AmpMode.FP16: torch.float16}


class OpenBatches(Protocol):
    """Opens a loader, as `harness.data.loading.open_loader` does."""

    def __call__(
        self,
        source: DataSource,
        settings: Settings,
        device: torch.device,
        *,
        generation: int,
        place: RankPlace,
    ) -> Loader:
        """Return a loader of `source` for `settings`."""
        ...


class Workload:
    """A model in training. The loop calls `next_batch` … `tidy` in turn, on the training thread.

    The functions of a step are attributes, chosen when settings change, so there is no overhead for what is
    switched off.

    Attributes:
        next_batch: the next batch, in host memory (on the device, for synthetic data).
        to_device: the batch on the device, in the memory format in effect.
        forward: the mean loss of a batch, with its graph.
        backward: adds the gradients of a loss, scaled for accumulation and fp16.
        update: steps the optimizer and clears the gradients.
        tidy: after a step, empties the cache where `empty_cache_every` asks for it and, with `device_metrics`
            off, waits for the loss, as a naive loop does.
        settings: the settings in effect.
        loss: the mean loss of the newest step, on the device and without graph.
        micro_batches: forward and backward passes per step (`grad_accumulation`).
        samples_per_step, tokens_per_step: consumption of one step; tokens are None unless the data is text.
    """

    next_batch: Callable[[], Batch]
    to_device: Callable[[Batch], Batch]
    forward: Callable[[Tensor, Tensor], Tensor]
    backward: Callable[[Tensor], None]
    update: Callable[[], None]
    tidy: Callable[[int], None]

    # See `harness.watch.training.Training`. A step is nothing but its calls, each forward pass has its
    # backward pass, an optimizer that replaces another one has its state, and `Recovery` handles errors.
    computes_between_calls = is_first_update = False
    calls_without_backward = last_event_ns = 0
    oom_phase = OomPhase.BETWEEN

    def __init__(
        self,
        settings: Settings,
        device: TensorDevice,
        model: LossModel,
        source: DataSource,
        open_batches: OpenBatches | None = None,
        replica: "Replica | None" = None,
    ) -> None:
        """`model` is on `device`. Raises SettingError if the settings do not fit it. `open_batches` replaces
        the loader where nothing is loaded (in the prediction of memory). `replica` joins the model with those
        of other ranks."""
        self.settings = settings
        self._replica = replica
        if replica is not None:
            replica.shard(model)
        self.model = model
        self._device = device
        self._source = source
        self._open_batches = open_batches
        injection = None if open_batches is not None else parse_injection(settings.inject)
        self._fault = None if injection is None else InjectedFault(injection, device, model)
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None
        self._has_compiled = False
        self._accumulators = _accumulators(model, device) if open_batches is None else []
        self.loss = torch.full((), float("nan"), device=device.torch_device)
        self._is_fresh = True
        self._generation = 0
        self._scaler = torch.amp.GradScaler(device.torch_device.type, enabled=False)
        self._optimizer = build_optimizer(settings, model)
        self._loader = self._open_loader(settings)
        try:
            self._adopt(settings)
        except BaseException:
            self._loader.close()
            raise

    def _next_batch(self) -> Batch:
        return self._loader.next()

    def _to_device(self, batch: Batch) -> Batch:
        inputs, targets = batch
        device, non_blocking = self._device.torch_device, self.settings.non_blocking
        if inputs.device != device:
            inputs = inputs.to(device, non_blocking=non_blocking)
            targets = targets.to(device, non_blocking=non_blocking)
        if self.settings.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, targets

    def _update(self) -> None:
        if self._scaler.is_enabled():
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=self.settings.set_to_none)
        self._is_fresh = True

    def _leave(self, _step: int) -> None:
        """Nothing to tidy."""

    def _tidy(self, step: int) -> None:
        settings = self.settings
        if not settings.device_metrics:
            self.loss.item()
        if settings.empty_cache_every and step % settings.empty_cache_every == 0:
            self._device.empty_cache()

    def validate(self, settings: Settings, changed: Sequence[str]) -> None:
        """Raise SettingError when model, data and `settings` do not fit together, or ranks do not have
        them."""
        del changed
        check_fit(settings)
        if self._replica is not None:
            self._replica.check(settings)

    def recorded(self, settings: Settings) -> dict[str, Any]:
        """Return all of `settings` as JSON values."""
        return settings.model_dump(mode="json")

    def reconfigure(self, settings: Settings) -> None:
        """Apply `settings`; on any error the settings before stay in effect and the error is raised.

        Raises SettingError or, if a compiler or an allocation fails, torch's RuntimeError.
        """
        before = self.settings
        changed = [name for name in SPECS if getattr(before, name) != getattr(settings, name)]
        loader = None
        if any(SPECS[name].effect is Effect.LOADER for name in changed):
            self._generation += 1
            loader = self._open_loader(settings)
        try:
            self._adopt(settings)
            is_split_anew = 1 < settings.data_parallel != before.data_parallel
            if (settings.compile and not before.compile) or is_split_anew:
                self._try_out(loader or self._loader)
        except BaseException:
            if loader is not None:
                loader.close()
            self.settings = settings  # Some of it may be in effect: revert all of it.
            self._compiled = self._compiled if before.compile else None
            self._adopt(before)
            raise
        if loader is not None:
            self._loader, old = loader, self._loader
            old.close()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Rebuilt when `optimizer_impl` changes."""
        return self._optimizer

    def abandon_step(self) -> None:
        """Discard a failed step: its gradients, its part of the loss, and its mark in the scaler. Weights and
        optimizer state stay as the step left them."""
        self._optimizer.zero_grad(set_to_none=True)
        self._is_fresh = True
        if self._scaler.is_enabled():
            state = self._scaler.state_dict()
            self._scaler = torch.amp.GradScaler(self._device.torch_device.type)
            self._scaler.load_state_dict(state)
            self._adopt(self.settings)

    def drop_begun_state(self) -> None:
        """Drop optimizer state created in an update that failed before it changed a weight; the next update
        creates it again. Only Adam variants have state, with the number of updates in it."""
        for weight, state in list(self._optimizer.state.items()):
            if float(state.get("step", 0)) == 0:
                del self._optimizer.state[weight]

    def renew_loader(self) -> None:
        """Open the loader again with another order of samples; its batches in progress are dropped."""
        self._generation += 1
        self._loader.close()
        self._loader = self._open_loader(self.settings)

    @property
    def data(self) -> DataSource:
        """The source of the batches."""
        return self._source

    def wrap(self, call: str, wrapper: Wrapper) -> Replaced:
        """Replace one of the functions that a step calls by `wrapper(function)`, until it is removed or a
        change of settings replaces it."""
        return Replaced(self, call, wrapper)

    @property
    def has_compiled(self) -> bool:
        """Return whether torch.compile was called by code that is not of this package, as far as that shows:
        up to the compilation of the model."""
        return has_compiled() if self._compiled is None else self._has_compiled

    def worker_pids(self) -> list[int]:
        """The process ids of the loader's workers."""
        return self._loader.worker_pids()

    def close(self) -> None:
        """Stop the loader's workers. Idempotent, bounded."""
        self._loader.close()

    def _open_loader(self, settings: Settings) -> Loader:
        open_batches = self._open_batches or open_loader
        source = self._source if self._fault is None else leaky(self._source, self._fault.injection, settings)
        place = ALONE if self._replica is None else self._replica.place
        return open_batches(
            source, settings, self._device.torch_device, generation=self._generation, place=place
        )

    def _adopt(self, settings: Settings) -> None:
        """Apply all settings except the loader's. Adopting the previous settings reverts each part."""
        shape = self._source.shape
        image = shape.is_image
        if settings.channels_last and not image:
            data = "text" if shape.inputs is None else "a dataset of its own"
            raise SettingError("channels_last", f"channels_last is for images; this run trains on {data}.")
        if settings.optimizer_impl is not self.settings.optimizer_impl:
            self._optimizer = rebuilt_optimizer(self._optimizer, settings, self.model)
        if image and (settings.channels_last or self.settings.channels_last):
            layout = torch.channels_last if settings.channels_last else torch.contiguous_format
            self.model.to(memory_format=layout)  # type: ignore[call-overload]  # typed for Tensor only
            lay_out_like_weights(self._optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate
        torch.set_float32_matmul_precision(settings.matmul_precision.value)
        torch.backends.cudnn.allow_tf32 = settings.matmul_precision is not MatmulPrecision.HIGHEST
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark
        self.model.checkpointing = settings.activation_checkpointing
        self._scale_gradients(settings.amp is AmpMode.FP16)
        self.settings = settings
        self.micro_batches = settings.grad_accumulation
        self.samples_per_step = settings.batch_size * settings.grad_accumulation
        self.tokens_per_step = self.samples_per_step * shape.sequence_length if shape.is_text else None
        ranged = _ranged if settings.nvtx else _plain
        self.next_batch = ranged("data_wait", self._next_batch)
        self.to_device = ranged("h2d", self._to_device)
        self.forward = ranged("forward", self._choose_forward())
        self.backward = ranged("backward", self._choose_backward())
        self.update = ranged("optimizer", self._update)
        self.tidy = self._leave if settings.device_metrics and not settings.empty_cache_every else self._tidy
        if self._fault is not None:
            self._fault.put_into(self, settings)

    def _scale_gradients(self, is_enabled: bool) -> None:
        if is_enabled != self._scaler.is_enabled():
            self._scaler = torch.amp.GradScaler(self._device.torch_device.type, enabled=is_enabled)

    def _choose_forward(self) -> Callable[[Tensor, Tensor], Tensor]:
        settings, device_type = self.settings, self._device.torch_device.type
        if settings.compile and self._compiled is None:
            self._has_compiled = has_compiled()
            self._compiled = compiled(self.model)
        model: Callable[[Tensor, Tensor], Tensor] = self.model
        if settings.compile and self._compiled is not None:
            model = self._compiled
        if self._replica is not None:
            model = self._replica.forward(self.model, self.micro_batches)
        if settings.data_parallel > 1:
            model = data_parallel(self.model, self._device.torch_device, settings.data_parallel)
        contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        if settings.amp is not AmpMode.OFF:
            dtype = _AMP_DTYPES[settings.amp]
            contexts.append(lambda: torch.autocast(device_type, dtype=dtype))
        if settings.offload_saved_tensors:
            contexts.append(lambda: save_on_cpu(pin_memory=self._device.facts.can_pin))
        if not contexts:
            return model

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                loss: Tensor = model(inputs, targets)
            return loss

        return forward

    def _choose_backward(self) -> Callable[[Tensor], None]:
        if self.micro_batches == 1 and not self._scaler.is_enabled():

            def backward(loss: Tensor) -> None:
                self.loss = loss.detach()
                loss.backward()

            return backward

        share, scaler = 1.0 / self.micro_batches, self._scaler

        def backward_share(loss: Tensor) -> None:
            part = loss * share
            self.loss = part.detach() if self._is_fresh else self.loss + part.detach()
            self._is_fresh = False
            scaler.scale(part).backward()

        return backward_share

    def _try_out(self, loader: Loader) -> None:
        """Run one forward and backward pass, so that compilation, or the other GPUs, fail now and not
        mid-run."""
        try:
            loss = self.forward(*self.to_device(loader.next()))
            loss.backward()
        finally:
            self._optimizer.zero_grad(set_to_none=True)


def _plain(_name: str, function: Callable[Args, Result]) -> Callable[Args, Result]:
    return function


def _ranged(name: str, function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Return `function` inside an NVTX range, which Nsight shows as `name`."""

    def inside(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        torch.cuda.nvtx.range_push(name)
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.nvtx.range_pop()

    return inside


def _accumulators(model: nn.Module, device: TensorDevice) -> list[Node]:
    """Return the nodes that accumulate the gradients of each weight, to keep them alive: a weight has no
    reference to its own, so each step would create them again, at some 0.4 µs per weight.

    From torch 2.9 on a node belongs to the stream at its creation, and warns about gradients from another one
    (a compiler's warm-up, a graph's capture): here that is intended.
    """
    is_cpu = device.facts.kind is DeviceKind.CPU
    if not is_cpu and (warn_on := getattr(graph, "set_warn_on_accumulate_grad_stream_mismatch", None)):
        warn_on(False)
    return [get_gradient_edge(weight).node for weight in model.parameters() if weight.requires_grad]
