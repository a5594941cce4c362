"""Looks at a failed step while its frames are alive, and keeps strings and numbers only.

What is kept must hold no frame and no tensor: as long as either lives, so does everything the step holds.
"""

import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from torch import nn

from harness.analysis.oom.error import ErrorNumbers, is_from_worker, read_error, tensor_bytes
from harness.analysis.oom.report import Asked, Held, Holder, LiveSite, OomPhase
from harness.device.allocated import allocated_bytes
from harness.device.protocol import AllocatorReading, Device, MemoryInfo
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind, MemoryReading
from harness.tracking.frames import is_own, is_torch, shorten
from harness.tracking.owners import owned_tensors, storage_bytes
from harness.watch.oom.backward import reached
from harness.watch.oom.errors import attempt
from harness.watch.training import Training, WatchSettings

_BEFORE_UPDATE = {"_init_group", "unscale_"}
"""Functions of torch's optimizers and of its scaler that are over before the first weight is changed: making
the state (all of it, where there is one group of parameters) and dividing gradients."""

_WORKLOAD = "harness/train/workload.py"
_MOST_FRAMES, _MOST_MODULES = 12, 12
_CODE_LENGTH, _ERROR_LENGTH = 120, 1_000
_DRIVERS_SHARE_BYTES = 1 << 30
"""Memory that a driver may reserve for itself: only more than this belongs to other processes."""
_FILE = re.compile(r'File "([^"]+)"')
_NO_FRAMES = (
    "The backward pass runs in C++, without Python frames: the line is the one that started it, and which "
    "module's gradient was being computed is not known."
)


class OomCapture(NamedTuple):
    """The captured evidence."""

    step: int
    error: str
    settings: WatchSettings
    asked: Asked
    held: Held
    memory: MemoryReading | None
    holders: tuple[Holder, ...]
    sites: tuple[LiveSite, ...]
    level_bytes: int | None
    """Allocated memory before the step."""
    left_weights_alone: bool
    """Whether it failed where no weight can have been changed."""


def look(
    error: BaseException,
    step: int,
    settings: WatchSettings,
    device: Device,
    training: Training | None,
    phase: OomPhase,
    memory: MemoryReading | None,
    level_bytes: int | None,
    cap_bytes: int | None,
    live_sites: Callable[[], Sequence[LiveSite]],
) -> OomCapture:
    """Look at what `error`, raised in `phase`, left behind, where the device read `memory`. `training` is
    None before it is built."""
    text = clean(str(error) or type(error).__name__)
    numbers = read_error(text, None if memory is None else memory.reserved_bytes)
    held = _held(device, numbers, memory, cap_bytes)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [number for _, number in traceback.walk_tb(error.__traceback__)]
    if is_from_worker(str(error)):
        phase = OomPhase.WORKER
    holders = attempt(lambda: _holders(training, held.allocated_bytes)) or ()
    return OomCapture(
        step=step,
        error=text[:_ERROR_LENGTH],
        settings=settings,
        asked=_asked(numbers, device.facts.kind, phase, frames, lines, training),
        held=held,
        memory=memory,
        holders=holders,
        sites=tuple(attempt(live_sites) or ()),
        level_bytes=level_bytes,
        left_weights_alone=phase is not OomPhase.OPTIMIZER or _is_before_update(frames, training),
    )


def clean(text: str) -> str:
    """An error's text on one line, without the folders of the person who sees it."""
    text = _FILE.sub(lambda found: f'File "{shorten(found[1])}"', text)
    return " ".join(text.replace(str(Path.home()), "~").split())


def _is_before_update(frames: Sequence[FrameType], training: Training | None) -> bool:
    if training is None or len(training.optimizer.param_groups) != 1:
        return False
    return not _BEFORE_UPDATE.isdisjoint(frame.f_code.co_name for frame in frames)


def _asked(
    numbers: ErrorNumbers,
    kind: DeviceKind,
    phase: OomPhase,
    frames: Sequence[FrameType],
    lines: Sequence[int],
    training: Training | None,
) -> Asked:
    least, most = (None, None) if numbers.asked_bytes is None else tensor_bytes(numbers.asked_bytes, kind)
    ours = [
        (frame, line)
        for frame, line in zip(reversed(frames), reversed(lines), strict=True)
        if not is_torch(file := shorten(frame.f_code.co_filename)) and not is_own(file)
    ]
    path, module = _module(frames, training)
    stack = tuple(
        f"{shorten(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in ours[:_MOST_FRAMES]
    )
    code = linecache.getline(ours[0][0].f_code.co_filename, ours[0][1]).strip() if ours else ""
    note = None
    if phase is OomPhase.BACKWARD and stack and stack[0].startswith(_WORKLOAD):
        found = None if training is None else attempt(lambda: reached(training))
        path, module, note = (None, None, _NO_FRAMES) if found is None else found
    return Asked(
        error_bytes=numbers.asked_bytes,
        least_bytes=least,
        most_bytes=most,
        phase=phase,
        module=path,
        module_kind=module,
        site=stack[0] if stack else None,
        code=code[:_CODE_LENGTH] or None,
        stack=stack,
        note=note,
    )


def _module_at(frame: FrameType) -> nn.Module | None:
    if "self" not in frame.f_code.co_varnames:
        return None
    found = frame.f_locals.get("self")
    return found if isinstance(found, nn.Module) else None


def _module(frames: Sequence[FrameType], training: Training | None) -> tuple[str | None, str | None]:
    """The path and the kind of the innermost module of the model at work."""
    if training is None:
        return None, None
    paths = {module: path for path, module in training.model.named_modules()}
    for frame in reversed(frames):
        module = _module_at(frame)
        if module is not None and module in paths:
            return paths[module], type(module).__name__
    return None, None


def _held(device: Device, numbers: ErrorNumbers, memory: MemoryReading | None, cap_bytes: int | None) -> Held:
    is_cpu = device.facts.kind is DeviceKind.CPU
    cut = attempt(device.read_allocator) or AllocatorReading.unknown()
    room = attempt(device.read_room) or MemoryInfo(None, None)
    total = numbers.total_bytes or room.total_bytes
    free = room.free_bytes if numbers.free_bytes is None else numbers.free_bytes
    process = attempt(device.rss_bytes) if is_cpu else numbers.process_bytes
    others = numbers.others_bytes
    if others is None and total is not None and free is not None and process is not None:
        rest = total - free - process
        others = rest if rest > _DRIVERS_SHARE_BYTES else None
    reserved = cut.reserved_bytes if is_cpu or memory is None else memory.reserved_bytes
    waiting = cut.waiting_bytes
    if waiting is None and memory is not None and memory.active_bytes is not None:
        waiting = max(0, memory.active_bytes - (memory.allocated_bytes or 0))
    # On the CPU both come from one look at the heap, which a reading leaves out where it was slow of late.
    allocated = allocated_bytes(cut) if is_cpu or memory is None else memory.allocated_bytes
    return Held(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        free_bytes=cut.free_bytes,
        split_free_bytes=cut.split_free_bytes,
        largest_free_bytes=cut.largest_free_bytes,
        private_free_bytes=cut.private_free_bytes,
        waiting_bytes=waiting,
        device_free_bytes=free,
        device_total_bytes=total,
        process_bytes=process,
        others_bytes=others,
        cap_bytes=cap_bytes,
        cap_left_bytes=cut.cap_left_bytes,
    )


def _holders(training: Training | None, held_bytes: int | None) -> tuple[Holder, ...]:
    """Return the bytes of weights, gradients and optimizer state: in total, by module, and the rest."""
    if training is None:
        return ()
    totals: dict[str, int] = {}
    parts: dict[tuple[str, str], int] = {}
    for tensor, owner in owned_tensors(training.model, training.optimizer):
        size, category = storage_bytes(tensor), owner.category.value
        totals[category] = totals.get(category, 0) + size
        if owner.module is not None:
            key = (category, owner.module)
            parts[key] = parts.get(key, 0) + size
    if held_bytes is not None:
        rest = held_bytes - sum(totals.values())
        totals[MemoryCategory.UNKNOWN.value] = max(0, rest)
    largest = sorted(parts.items(), key=lambda part: -part[1])[:_MOST_MODULES]
    return (
        *(Holder(c, None, size) for c, size in sorted(totals.items(), key=lambda t: -t[1]) if size),
        *(Holder(category, module or "the model itself", size) for (category, module), size in largest),
    )
