"""What PyTorch's profiler recorded, event by event, in the little that is read of it.

`key_averages()` builds a Python object with twenty fields an event and a tree of them, which takes 64 µs an
event; reading what is needed and adding it up takes 9 µs. See docs/bench.md.
"""

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from torch.autograd import DeviceType  # type: ignore[attr-defined]

# What the name of a phase's range begins with.
PHASE = "phase: "
MODULE = "module: "
STEP = "ProfilerStep#"
NODE = "autograd::engine::evaluate_function: "
_MEMORY = "[memory]"
# How a Python function is named; the line is its first.
FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# What CUDA's runtime and driver are called for; where `activity_type` does not tell (PyTorch 2.6).
_LAUNCHES = re.compile(r"^(cuda|cu|hip|hsa)[A-Z]")
_LAUNCH_TYPES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
_WORK_TYPES = ("kernel", "gpu_memcpy", "gpu_memset")
# What the device's own track shows besides its work.
_WAITS = ("Context Sync", "Stream Sync", "Stream Wait Event", "Event Sync", "Event Record")


class Role(Enum):
    """What an event is."""

    OPERATOR = 0
    # Autograd runs a node of the graph backward.
    NODE = 1
    # A call into CUDA, inside an operator.
    LAUNCH = 2
    PHASE = 3
    MODULE = 4
    STEP = 5
    # A Python function.
    FRAME = 6
    MEMORY = 7
    # A kernel, copy or fill on the device.
    KERNEL = 8


class Event(NamedTuple):
    """One event. Nanoseconds count from some moment, the same for all."""

    role: Role
    # Of a phase or module: its own, without what ranges are told by.
    name: str
    start_ns: int
    end_ns: int
    thread: int
    # The number of the node that an operator makes, or that is run; -1: none.
    sequence: int = -1
    # The thread on which a node was made, in events of the backward pass; 0 in those of the forward pass.
    forward_thread: int = 0
    # Of an operator: its number. Of a launch and what it launched: theirs, which count apart.
    correlation: int = 0
    # The operator that a kernel belongs to.
    linked: int = 0
    # Allocated; negative: freed.
    size_bytes: int = 0


def read(recorded: Iterable[Any], is_on_device: bool) -> list[Event]:
    """The events that count, in their order. `is_on_device`: a GPU was recorded, and memory is the GPU's."""
    events = list(recorded)
    ranges = {event.name() for event in events if event.is_user_annotation()}
    known: dict[tuple[str, bool, bool], tuple[Role | None, str]] = {}
    found = []
    for event in events:
        name = event.name()
        is_device = event.device_type() != DeviceType.CPU
        key = (name, is_device, event.is_user_annotation())
        if key not in known:
            role = _device_role(event, name, ranges) if is_device else _cpu_role(event, name)
            known[key] = (role, _plain(role, name))
        role, plain = known[key]
        if role is None or (role is Role.MEMORY and is_device != is_on_device):
            continue
        start_ns = event.start_ns()
        found.append(
            Event(
                role,
                plain,
                start_ns,
                start_ns + event.duration_ns(),
                event.start_thread_id(),
                event.sequence_nr(),
                event.fwd_thread_id(),
                event.correlation_id(),
                event.linked_correlation_id(),
                event.nbytes() if role is Role.MEMORY else 0,
            )
        )
    return found


@contextmanager
def collector_off() -> Iterator[None]:
    """Without Python's garbage collector, which would walk over the whole program several times while a
    hundred thousand small objects are made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cpu_role(event: Any, name: str) -> Role | None:
    """What an event on the CPU's track is; None: nothing that counts, as ranges of somebody else."""
    if event.is_user_annotation():
        if name.startswith(PHASE):
            return Role.PHASE
        if name.startswith(MODULE):
            return Role.MODULE
        return Role.STEP if name.startswith(STEP) else None
    if name.startswith(NODE):
        return Role.NODE
    if name.startswith(MODULE):
        return Role.MODULE
    if name == _MEMORY:
        return Role.MEMORY
    if _is_frame(event, name):
        return Role.FRAME
    kind = _activity(event)
    if kind in _LAUNCH_TYPES or (not kind and _LAUNCHES.match(name)):
        return Role.LAUNCH
    return Role.OPERATOR if kind in ("", "cpu_op") else None


def _device_role(event: Any, name: str, ranges: set[str]) -> Role | None:
    """What an event on a device's track is; ranges are repeated there, around what they launched."""
    if name == _MEMORY:
        return Role.MEMORY
    if event.is_user_annotation() or name in ranges or name.startswith(_WAITS):
        return None
    kind = _activity(event)
    return Role.KERNEL if not kind or kind in _WORK_TYPES else None


def _activity(event: Any) -> str:
    """Kineto's word for what it is; empty where PyTorch does not tell."""
    tell = getattr(event, "activity_type", None)
    return "" if tell is None else str(tell())


def _is_frame(event: Any, name: str) -> bool:
    tell = getattr(event, "is_python_function", None)
    if tell is not None:
        return bool(tell())
    return FRAME.match(name) is not None or name.startswith(("<built-in ", "nn.Module: "))


def _plain(role: Role | None, name: str) -> str:
    if role is Role.PHASE:
        return name[len(PHASE) :]
    return name[len(MODULE) :] if role is Role.MODULE else name
