"""Trace of two training steps on tensors without data: the birth and death of each storage."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from harness.data.source import shape_of
from harness.models.base import LossModel
from harness.models.building import build_model, import_code
from harness.predict.cuda_rules import cuda_rules
from harness.predict.fakes import (
    LARGEST_RESULTS,
    in_place,
    mark_check,
    swapping_weights,
    tracing_mode,
    value_of_check,
)
from harness.predict.folding import fold_recurrent
from harness.predict.question import Question
from harness.predict.recurrent import fuse_recurrent
from harness.predict.scratch import KernelRun, Scratch
from harness.predict.shapes import ShapeSource, open_shape_loader
from harness.predict.trace_log import Birth, PhaseStart, StorageLog
from harness.records.memory import MemoryCategory
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import OptimizerImpl
from harness.settings.spec import change
from harness.tracking.storages import StorageWatch
from harness.train.workload import Workload

# The first makes the optimizer's state; the second is like all that follow.
STEPS = 2
# Losses of which torch returns the mean, or sum, in the memory for the losses of all elements, shrunk to one:
# the position of the reduction among their arguments (`aten/src/ATen/native/Loss.cpp`, also for CUDA).
_SHRUNK_LOSSES = {
    torch.ops.aten.mse_loss.default: 2,
    torch.ops.aten.smooth_l1_loss.default: 2,
    torch.ops.aten.soft_margin_loss.default: 2,
    torch.ops.aten.binary_cross_entropy.default: 3,
}
_NO_REDUCTION = 0
# torch caches the result of each operator for each shape without a bound: some kilobytes each.
_MOST_SHAPES = 50_000


class Trace(NamedTuple):
    """Two training steps as a log. An event is a storage's number when it is born, and the complement of its
    number (`~number`) when it dies."""

    births: list[Birth]
    events: list[int]
    phases: list[PhaseStart]
    # The number of the second step's first phase.
    last_step: int
    # The numbers of the kernels' own memory.
    scratch: frozenset[int]
    # Categories of storages attributed by their references.
    categories: Mapping[int, MemoryCategory]
    # For weights, gradients and optimizer state: the path of their module.
    modules: Mapping[int, str]
    model: nn.Module
    # Of the data source, where known.
    samples: int | None
    # Whether the model read checks of values that it computes, which were taken to pass.
    assumes_checks: bool
    # Of the CPU, in their order; their own memory has size 0 (see `harness.predict.footprints`).
    kernels: Sequence[KernelRun]


class TracedDevice:
    """The device of a trace: fake tensors on the CPU."""

    facts = DeviceFacts(
        kind=DeviceKind.CPU,
        ordinal=None,
        uuid=None,
        name="traced CPU",
        memory_bytes=None,
        capability=None,
        multiprocessors=None,
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, AmpMode.BF16, AmpMode.FP16),
        can_pin=False,
        can_trim=False,
        can_cap=False,
        can_compile=False,
    )
    torch_device = torch.device("cpu")

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""


class _Owners:
    """Attributes storages to categories and modules."""

    def __init__(self, watch: StorageWatch[int], network: nn.Module) -> None:
        self._watch = watch
        self._paths: dict[Tensor, str] = {}
        self.categories: dict[int, MemoryCategory] = {}
        self.modules: dict[int, str] = {}
        for path, module in network.named_modules():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                self._take(tensor, MemoryCategory.WEIGHTS, path)
                if isinstance(tensor, nn.Parameter):
                    self._paths.setdefault(tensor, path)

    def take_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Attribute batches, on the host and on the device."""
        for tensor in tensors:
            self._take(tensor, MemoryCategory.INPUTS, None)

    def take_gradients(self) -> None:
        """Attribute the current gradients."""
        for parameter, path in self._paths.items():
            if parameter.grad is not None:
                self._take(parameter.grad, MemoryCategory.GRADIENTS, path)

    def take_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Attribute the current optimizer state."""
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, Tensor):
                    self._take(value, MemoryCategory.OPTIMIZER, self._paths.get(parameter))

    def _take(self, tensor: Tensor, category: MemoryCategory, path: str | None) -> None:
        number = self._watch.key_of(tensor)
        if number is not None and number not in self.categories:
            self.categories[number] = category
            if path is not None:
                self.modules[number] = path


class _Watch(StorageWatch[int]):
    """Tracks storages, adds the kernels' own memory, and returns values where fake tensors cannot.

    Attributes:
        assumes_checks: whether a check of values was read, and taken to pass.
    """

    def __init__(self, log: StorageLog, scratch: Scratch) -> None:
        super().__init__(log.born, log.died)
        self._log = log
        self._scratch = scratch
        self.assumes_checks = False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)  # A query that allocates nothing; half of all calls.
        phase = self._log.phases[-1].name
        if phase == "backward" and not torch.is_grad_enabled():
            func = in_place(func)
        try:
            result = self._result(func, types, args, kwargs or {})
        except DataDependentOutputException:
            value = self._value(args[0]) if func is torch.ops.aten._local_scalar_dense.default else None
            if value is None:
                raise
            return value
        return self._scratch.ran(func, args, kwargs or {}, result, phase)

    def _result(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func in _SHRUNK_LOSSES and (elements := _of_all_elements(func, args)) is not None:
            return super().__torch_dispatch__(func, types, elements, kwargs).resize_(())
        if _writes_in_place(func) and args[0].dim():  # Numbers of no dimension keep their values.
            return args[0]  # As the operator would return it, at a tenth of the time.
        if func in LARGEST_RESULTS:
            results = LARGEST_RESULTS[func](*args, **kwargs)
            for tensor in results:
                self.adopt(tensor)
            return results
        result = super().__torch_dispatch__(func, types, args, kwargs)
        mark_check(func, args, result)
        return result

    def _value(self, tensor: Tensor) -> float | bool | None:
        """Return a value for code that reads it; None where the shapes may depend on it."""
        if tensor.is_floating_point():
            return 0.0  # GradScaler reads the number of overflowed gradients.
        if tensor.dtype is torch.bool and self._log.is_building:
            return False  # Initial values are checked for resampling; here there are none.
        value = value_of_check(tensor)
        self.assumes_checks |= value is not None
        return value


def _of_all_elements(function: OpOverload, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the arguments with which one of `_SHRUNK_LOSSES` returns the loss of each element; None if they
    are those already."""
    position = _SHRUNK_LOSSES[function]
    if len(args) > position and args[position] == _NO_REDUCTION:
        return None
    before = (*args[:position], *(None for _ in range(position - len(args))))
    return (*before, _NO_REDUCTION, *args[position + 1 :])


@cache
def _writes_in_place(function: OpOverload) -> bool:
    """Return whether an operator is pointwise and writes the result into its first argument."""
    name = function.overloadpacket.__name__
    return name.endswith("_") and not name.startswith("_") and torch.Tag.pointwise in function.tags


class _Stage(NamedTuple):
    """The inputs of a trace."""

    workload: Workload
    network: LossModel
    watch: _Watch
    log: StorageLog
    scratch: Scratch
    samples: int | None


def trace(question: Question) -> Trace:
    """Build the model of `question` and take two steps. Nothing is computed and no tensor has memory. Raises
    SettingError, and torch's errors if the model depends on computed values."""
    with _stage(question) as stage:
        workload, network, watch, log, scratch, samples = stage
        owners = _Owners(watch, network)
        with _naming_modules(network, log.modules):
            for _ in range(STEPS):
                last_step = len(log.phases)
                _step(workload, log, owners, scratch)
        log.begin("end")
        owners.take_optimizer(workload.optimizer)
    numbers, categories, modules = frozenset(scratch.numbers), owners.categories, owners.modules
    return Trace(
        log.births,
        log.events,
        log.phases,
        last_step,
        numbers,
        categories,
        modules,
        network,
        samples,
        watch.assumes_checks,
        scratch.kernels,
    )


def trace_kernels(question: Question) -> Sequence[KernelRun]:
    """Return the runs of kernels in the first of the steps of `trace`, without its update, which has none:
    takes a third of the time. Raises as `trace` does."""
    with _stage(question) as (workload, network, watch, log, scratch, _):
        _pass_micro_batches(workload, log, _Owners(watch, network), scratch)
    return scratch.kernels


@contextmanager
def _stage(question: Question) -> Iterator[_Stage]:
    """Build the model of `question`, and have all operators until the end of the context traced."""
    log = StorageLog()
    scratch = Scratch(
        question,
        lambda size_bytes: log.born(None, size_bytes, None),
        log.died,
        log.spread,
        lambda tensor: watch.adopt(tensor),
    )
    watch = _Watch(log, scratch)
    settings = _as_on_target(question)
    shape = shape_of(settings)
    is_cuda = question.kind is DeviceKind.CUDA
    rules = cuda_rules(autocast=settings.amp is not AmpMode.OFF) if is_cuda else nullcontext()
    import_code(settings)  # Before the rules, of which it would keep the functions that it imports by name.
    with tracing_mode(), watch, rules, swapping_weights():
        network = build_model(settings, shape)
        if is_cuda:
            fuse_recurrent(network)
        else:
            fold_recurrent(network, log.living, scratch.add_untraced)
        workload = Workload(settings, TracedDevice(), network, ShapeSource(shape), open_shape_loader)
        if question.settings.offload_saved_tensors:
            workload.forward = _offloading(workload.forward)
        yield _Stage(workload, network, watch, log, scratch, shape.samples)
    watch.forget()
    if FakeTensorMode.cache_info().size > _MOST_SHAPES:
        FakeTensorMode.cache_clear()


def _as_on_target(question: Question) -> Settings:
    """Return the settings under which a trace on the CPU matches the target. On CUDA the optimizer batches
    its parameters by default; offloading is traced separately; compilation is excluded."""
    changes: dict[str, Any] = {"compile": False, "offload_saved_tensors": False, "device": "cpu"}
    if question.kind is DeviceKind.CUDA and question.settings.optimizer_impl is OptimizerImpl.AUTO:
        changes["optimizer_impl"] = OptimizerImpl.FOREACH
    return change(question.settings, changes)


def _step(workload: Workload, log: StorageLog, owners: _Owners, scratch: Scratch) -> None:
    """Take one step as `harness.train.loop.train` does, with the same references from phase to phase."""
    last = _pass_micro_batches(workload, log, owners, scratch)
    owners.take_gradients()
    log.begin("optimizer")
    workload.update()
    log.begin("tidy")
    del last
    scratch.loss_ended()


def _pass_micro_batches(
    workload: Workload, log: StorageLog, owners: _Owners, scratch: Scratch
) -> tuple[object, ...]:
    """Pass each batch of a step forward and backward. Return what the loop has of the last one."""
    for _ in range(workload.micro_batches):
        log.begin("data wait")
        batch = workload.next_batch()
        log.begin("copy")
        inputs, targets = workload.to_device(batch)
        owners.take_inputs((*batch, inputs, targets))
        log.begin("forward")
        loss = workload.forward(inputs, targets)
        scratch.forward_ended(loss)
        log.begin("backward")
        scratch.backward_began()
        workload.backward(loss)
        scratch.backward_ended()
    return batch, inputs, targets, loss


class _Packed(NamedTuple):
    """The layout of a saved tensor in the host's memory."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _offloading(forward: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Wrap `forward` as `save_on_cpu` does on a GPU: saved tensors leave the device at once, and return as
    new tensors when backward unpacks them."""

    def pack(tensor: Tensor) -> _Packed:
        return _Packed(tensor.size(), tensor.stride(), tensor.dtype)

    def unpack(packed: _Packed) -> Tensor:
        return torch.empty(packed.size, dtype=packed.dtype)

    def offloaded(inputs: Tensor, targets: Tensor) -> Tensor:
        with saved_tensors_hooks(pack, unpack):
            return forward(inputs, targets)

    return offloaded


@contextmanager
def _naming_modules(network: nn.Module, stack: list[str]) -> Iterator[None]:
    """Maintain on `stack` the paths of the modules that are executing."""
    paths = {module: path for path, module in network.named_modules()}

    def enter(module: nn.Module, _inputs: object) -> None:
        stack.append(paths.get(module, ""))

    def leave(_module: nn.Module, _inputs: object, _output: object) -> None:
        stack.pop()

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
