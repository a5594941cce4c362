"""Capture of the evidence of an out-of-memory error while the frames of the failed step are alive.

The evidence is strings and numbers only: a frame or a tensor in it would keep all memory of the step.
"""

import linecache
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple

import torch
from torch import nn

from harness.analysis.oom.error import (
    ErrorNumbers,
    allowed_bytes,
    is_of_host,
    is_of_shared_memory,
    read_error,
    tensor_bytes,
)
from harness.analysis.oom.report import (
    FailedRequest,
    LiveCategory,
    LiveSite,
    LiveVariable,
    MemoryAtFailure,
    OomPhase,
)
from harness.device.allocated import allocated_bytes
from harness.device.cpu.heap import large_hole_bytes, separates_large_blocks
from harness.device.host.shared_memory import read_shared_memory
from harness.device.protocol import AllocatorReading, Device, MemoryInfo
from harness.records.memory import MemoryCategory, ProcessLimit
from harness.records.run import DeviceKind, MemoryReading
from harness.tracking.frames import is_installed, is_library, is_own, shorten
from harness.tracking.owners import owned_tensors, storage_bytes
from harness.watch.oom.backward import reached
from harness.watch.oom.errors import attempt
from harness.watch.oom.holders import script_modules
from harness.watch.oom.place import FailedDevice, failed_device
from harness.watch.oom.raised import Call, RaisedError
from harness.watch.oom.variables import largest_variables, locals_of
from harness.watch.training import Training, WatchSettings

# Functions of torch's optimizers and of its scaler that return before the first weight changes: creation of
# the state (all of it, if there is one group of parameters) and division of the gradients.
_BEFORE_UPDATE = {"_init_group", "unscale_"}

_WORKLOAD = "harness/train/workload.py"
# The function of torch/autograd/graph.py that enters the engine.
_ENGINE = "_engine_run_backward"
_MOST_FRAMES, _MOST_MODULES = 12, 12
_CODE_LENGTH, _ERROR_LENGTH = 120, 1_000
# A driver may reserve this much for itself: only more than this belongs to other processes.
_DRIVER_RESERVE_BYTES = 1 << 30
_NO_FRAMES = (
    "The backward pass runs in C++, without Python frames: the line is the one that started it, and which "
    "module's gradient was being computed is not known."
)


class OomCapture(NamedTuple):
    """The captured evidence."""

    step: int
    error: str
    settings: WatchSettings
    request: FailedRequest
    memory_state: MemoryAtFailure
    memory: MemoryReading | None
    categories: tuple[LiveCategory, ...]
    sites: tuple[LiveSite, ...]
    variables: tuple[LiveVariable, ...]
    # Allocated before the step on the run's device.
    baseline_bytes: int | None
    # True if the step failed where no weight can have changed.
    are_weights_intact: bool
    # Whether an optimizer that failed made its first step.
    is_first_update: bool
    # See `Training.calls_without_backward`.
    calls_without_backward: int
    device_name: str
    # False if memory ran out on another GPU than the one that the run records the memory of.
    is_own_device: bool


class FailedRun(NamedTuple):
    """The run in which memory ran out, at that moment."""

    settings: WatchSettings
    device: Device
    # None before it is built.
    training: Training | None
    # The reading of `device`.
    memory: MemoryReading | None
    # Allocated before the step on `device`.
    baseline_bytes: int | None
    live_sites: Callable[[], Sequence[LiveSite]]


def capture_evidence(error: BaseException, step: int, phase: OomPhase, run: FailedRun) -> OomCapture:
    """Capture the evidence of `error`, raised in `phase` of `step`."""
    training, raised = run.training, RaisedError.of(error)
    failed = failed_device(raised.text, run.device, run.memory)
    numbers = read_error(raised.text, None if failed.memory is None else failed.memory.reserved_bytes)
    memory_state = _memory(failed, raised, numbers, run.settings.memory_cap_bytes)
    phase = _located_phase(raised, phase, training)
    kind = DeviceKind.CPU if is_of_host(raised.text) else run.device.facts.kind
    request = _request(raised, numbers, kind, phase, training)
    if failed.note is not None:
        request = request._replace(note=" ".join(note for note in (request.note, failed.note) if note))
    place = failed.torch_device
    return OomCapture(
        step=step,
        error=raised.message[:_ERROR_LENGTH],
        settings=run.settings,
        request=request,
        memory_state=memory_state,
        memory=failed.memory,
        categories=attempt(lambda: _categories(training, place, memory_state.allocated_bytes)) or (),
        sites=tuple(attempt(run.live_sites) or ()) if failed.is_own else (),
        variables=attempt(lambda: _variables(raised, place, training)) or (),
        baseline_bytes=run.baseline_bytes,
        are_weights_intact=phase is not OomPhase.OPTIMIZER or _is_before_update(raised.frames, training),
        is_first_update=step == 1 or (training is not None and training.is_first_update),
        calls_without_backward=0 if training is None else training.calls_without_backward,
        device_name=failed.name,
        is_own_device=failed.is_own,
    )


def _located_phase(raised: RaisedError, phase: OomPhase, training: Training | None) -> OomPhase:
    """Return the phase of the error: a loader's worker, or where the traceback says more than `phase`."""
    if raised.is_from_worker:
        return OomPhase.WORKER
    if phase in (OomPhase.SETUP, OomPhase.BETWEEN):
        return attempt(lambda: _phase_of_frames(raised.frames, training, phase)) or phase
    return phase


def _is_before_update(frames: Sequence[FrameType], training: Training | None) -> bool:
    if training is None or len(training.optimizer.param_groups) != 1:
        return False
    return not _BEFORE_UPDATE.isdisjoint(frame.f_code.co_name for frame in frames)


def _request(
    raised: RaisedError,
    numbers: ErrorNumbers,
    kind: DeviceKind,
    phase: OomPhase,
    training: Training | None,
) -> FailedRequest:
    frames = raised.frames
    least, most = (
        (None, None) if numbers.requested_bytes is None else tensor_bytes(numbers.requested_bytes, kind)
    )
    ours = [call for call in raised.calls() if not is_library(file := shorten(call[0])) and not is_own(file)]
    path, module = _module(frames, training)
    stack = tuple(_site(call) for call in ours[:_MOST_FRAMES])
    code = linecache.getline(ours[0][0], ours[0][1]).strip() if ours else ""
    note = None
    is_workload = bool(stack) and stack[0].startswith(_WORKLOAD)
    if phase is OomPhase.BACKWARD and (is_workload or _is_in_engine(frames)):
        progress = None if training is None else attempt(lambda: reached(training))
        path, module, note = (None, None, _NO_FRAMES) if progress is None else progress
    return FailedRequest(
        error_bytes=numbers.requested_bytes,
        least_bytes=least,
        most_bytes=most,
        phase=phase,
        module=path,
        module_kind=module,
        site=stack[0] if stack else None,
        code=code[:_CODE_LENGTH] or None,
        stack=stack,
        note=note,
        script_site=next((_site(call) for call in ours if not is_installed(call[0])), None),
    )


def _site(call: Call) -> str:
    file, line, function = call
    return f"{shorten(file)}:{line} {function}"


def _is_in_engine(frames: Sequence[FrameType]) -> bool:
    """Return whether autograd's engine failed in C++: it was called, and called no code outside of torch."""
    names = [frame.f_code.co_name for frame in reversed(frames)]
    if _ENGINE not in names:
        return False
    inner = [shorten(frame.f_code.co_filename) for frame in frames[len(frames) - names.index(_ENGINE) :]]
    return all(is_library(file) or is_own(file) for file in inner)


def _module_at(frame: FrameType) -> nn.Module | None:
    if "self" not in frame.f_code.co_varnames:
        return None
    owner = locals_of(frame).get("self")
    return owner if isinstance(owner, nn.Module) else None


def _phase_of_frames(frames: Sequence[FrameType], training: Training | None, otherwise: OomPhase) -> OomPhase:
    """Return what ran before there was a training, or in none of its steps: the call of a model, or the
    making of one, or its move; `otherwise` for anything else.

    No phase of a step says so in the first step of a script's further model, nor where an evaluation has
    ended.
    """
    modules = None if training is None else set(training.model.modules())
    for frame in frames:
        module = _module_at(frame) if frame.f_code is nn.Module._call_impl.__code__ else None
        if module is None or (modules is not None and module not in modules):
            continue
        if next(module.parameters(), None) is not None:  # No transform of a dataset.
            return OomPhase.FORWARD if module.training else OomPhase.EVALUATION
    is_of_module = training is None and any(_module_at(frame) is not None for frame in frames)
    return OomPhase.BUILD if is_of_module else otherwise


def _module(frames: Sequence[FrameType], training: Training | None) -> tuple[str | None, str | None]:
    """Return path and class name of the innermost module of the model that was executing."""
    if training is None:
        return None, None
    paths = {module: path for path, module in training.model.named_modules()}
    for frame in reversed(frames):
        module = _module_at(frame)
        if module is not None and module in paths:
            return paths[module], type(module).__name__
    return None, None


def _memory(
    failed: FailedDevice, raised: RaisedError, numbers: ErrorNumbers, cap_bytes: int | None
) -> MemoryAtFailure:
    device, memory = failed.device, failed.memory
    caps = [cap_bytes if failed.is_own else None, allowed_bytes(raised.text)]
    cap_bytes = min((cap for cap in caps if cap is not None), default=None)
    is_shared = is_of_shared_memory(raised.text)
    shared = read_shared_memory() if is_shared else None
    is_cpu = device is not None and device.facts.kind is DeviceKind.CPU
    allocator = (None if device is None else attempt(device.read_allocator)) or AllocatorReading.unknown()
    process_limit = allocator.process_limit
    info = (None if device is None else attempt(device.read_memory_info)) or MemoryInfo(None, None)
    total = numbers.total_bytes or info.total_bytes
    free = info.free_bytes if numbers.free_bytes is None else numbers.free_bytes
    requested = numbers.requested_bytes
    if raised.is_from_worker and process_limit is not None:
        # Shared memory is not covered by it.
        process_limit = None if is_shared else _limit_of_worker(process_limit, requested, free, cap_bytes)
        if process_limit is not None:  # The readings are those of another process than the worker.
            allocator = AllocatorReading.unknown()
    process = attempt(device.rss_bytes) if device is not None and is_cpu else numbers.process_bytes
    others = numbers.others_bytes
    if others is None and total is not None and free is not None and process is not None:
        rest = total - free - process
        others = rest if rest > _DRIVER_RESERVE_BYTES else None
    reserved = allocator.reserved_bytes if is_cpu or memory is None else memory.reserved_bytes
    waiting = allocator.waiting_bytes
    if waiting is None and memory is not None and memory.active_bytes is not None:
        waiting = max(0, memory.active_bytes - (memory.allocated_bytes or 0))
    # On the CPU both come from one reading of the heap, which is skipped where the last one was slow.
    allocated = allocated_bytes(allocator) if is_cpu or memory is None else memory.allocated_bytes
    return MemoryAtFailure(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        free_bytes=allocator.free_bytes,
        split_free_bytes=allocator.split_free_bytes,
        largest_free_bytes=allocator.largest_free_bytes,
        private_free_bytes=allocator.private_free_bytes,
        waiting_bytes=waiting,
        device_free_bytes=free,
        device_total_bytes=total,
        process_bytes=process,
        others_bytes=others,
        cap_bytes=cap_bytes,
        cap_left_bytes=allocator.cap_left_bytes,
        process_limit=process_limit,
        maps_large_blocks=is_cpu and separates_large_blocks(),
        large_hole_bytes=attempt(lambda: large_hole_bytes(requested)) if is_cpu and requested else None,
        shared_free_bytes=None if shared is None else shared.free_bytes,
        shared_total_bytes=None if shared is None else shared.total_bytes,
    )


def _limit_of_worker(
    limit: ProcessLimit, requested_bytes: int | None, free_bytes: int | None, cap_bytes: int | None
) -> ProcessLimit | None:
    """Return the limit that a loader's worker has inherited, and filled with memory of its own: nothing else
    refuses a request while the machine has memory. None if the machine may have refused it, or a cap."""
    if cap_bytes is not None or free_bytes is None or (requested_bytes or 0) >= free_bytes:
        return None
    return ProcessLimit(limit.option, limit.limit_bytes, limit.limit_bytes, 0)


def _variables(
    raised: RaisedError, device: torch.device, training: Training | None
) -> tuple[LiveVariable, ...]:
    if training is None:
        return ()
    owned = (tensor for tensor, _ in owned_tensors(training.model, training.optimizer))
    modules = script_modules(raised.frames)
    return largest_variables(raised.frames, raised.lines, device, owned, modules)


def _categories(
    training: Training | None, device: torch.device, allocated_bytes: int | None
) -> tuple[LiveCategory, ...]:
    """Return the bytes of weights, gradients and optimizer state on the device: in total, by module, and the
    rest."""
    if training is None:
        return ()
    totals: dict[str, int] = {}
    parts: dict[tuple[str, str], int] = {}
    for tensor, owner in owned_tensors(training.model, training.optimizer, device):
        size, category = storage_bytes(tensor), owner.category.value
        totals[category] = totals.get(category, 0) + size
        if owner.module is not None:
            key = (category, owner.module)
            parts[key] = parts.get(key, 0) + size
    if allocated_bytes is not None:
        rest = allocated_bytes - sum(totals.values())
        totals[MemoryCategory.UNKNOWN.value] = max(0, rest)
    largest = sorted(parts.items(), key=lambda part: -part[1])[:_MOST_MODULES]
    return (
        *(LiveCategory(c, None, size) for c, size in sorted(totals.items(), key=lambda t: -t[1]) if size),
        *(LiveCategory(category, module or "the model itself", size) for (category, module), size in largest),
    )
