"""The events of PyTorch's profiler, reduced to the fields in use.

`key_averages()` builds a tree of Python objects with twenty fields each, which takes 64 µs per event; reading
and summing the fields in use takes 9 µs. See docs/bench.md.
"""

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from torch.autograd import DeviceType  # type: ignore[attr-defined]

# The prefix of the range of a phase.
PHASE = "phase: "
MODULE = "module: "
STEP = "ProfilerStep#"
NODE = "autograd::engine::evaluate_function: "
_MEMORY = "[memory]"
# The name of a Python function, with its first line.
FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
# Calls of CUDA's runtime and driver, for PyTorch 2.6 without `activity_type`.
_LAUNCHES = re.compile(r"^(cuda|cu|hip|hsa)[A-Z]")
_LAUNCH_TYPES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
_WORK_TYPES = ("kernel", "gpu_memcpy", "gpu_memset")
# Events of the device's track that are not work.
_WAITS = ("Context Sync", "Stream Sync", "Stream Wait Event", "Event Sync", "Event Record")


class Role(Enum):
    """The role of an event."""

    OPERATOR = 0
    # Autograd runs a node of the graph.
    NODE = 1
    # A call into CUDA, inside an operator.
    LAUNCH = 2
    PHASE = 3
    MODULE = 4
    STEP = 5
    # A Python function.
    FRAME = 6
    MEMORY = 7
    # A kernel, copy or memset on the device.
    KERNEL = 8


class Event(NamedTuple):
    """One event. Nanoseconds count from a common origin."""

    role: Role
    # Of a phase or module: without the prefix of the range.
    name: str
    start_ns: int
    end_ns: int
    thread: int
    # The sequence number of the node that an operator creates, or that runs; -1: none.
    sequence: int = -1
    # The thread that created a node, in events of the backward pass; 0 in the forward pass.
    forward_thread: int = 0
    # The number of an operator, or the separately counted number of a launch and its kernel.
    correlation: int = 0
    # The number of the operator that launched a kernel.
    linked: int = 0
    # Allocated bytes; negative: freed.
    size_bytes: int = 0


def read(recorded: Iterable[Any], is_on_device: bool) -> list[Event]:
    """Return the relevant events, in order. `is_on_device`: a GPU was recorded, and memory is the GPU's."""
    events = list(recorded)
    ranges = {event.name() for event in events if event.is_user_annotation()}
    roles: dict[tuple[str, bool, bool], tuple[Role | None, str]] = {}
    selected = []
    for event in events:
        name = event.name()
        is_device = event.device_type() != DeviceType.CPU
        key = (name, is_device, event.is_user_annotation())
        if key not in roles:
            role = _device_role(event, name, ranges) if is_device else _cpu_role(event, name)
            roles[key] = (role, _plain(role, name))
        role, plain = roles[key]
        if role is None or (role is Role.MEMORY and is_device != is_on_device):
            continue
        start_ns = event.start_ns()
        selected.append(
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
    return selected


@contextmanager
def collector_off() -> Iterator[None]:
    """Disable Python's garbage collector, which would traverse the whole program several times while a
    hundred thousand small objects are created."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cpu_role(event: Any, name: str) -> Role | None:
    """Return the role of an event on the CPU's track; None: irrelevant, such as ranges of other code."""
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
    """Return the role of an event on a device's track, where ranges are repeated around their kernels."""
    if name == _MEMORY:
        return Role.MEMORY
    if event.is_user_annotation() or name in ranges or name.startswith(_WAITS):
        return None
    kind = _activity(event)
    return Role.KERNEL if not kind or kind in _WORK_TYPES else None


def _activity(event: Any) -> str:
    """Return Kineto's type of the event; empty if PyTorch does not have it."""
    read_type = getattr(event, "activity_type", None)
    return "" if read_type is None else str(read_type())


def _is_frame(event: Any, name: str) -> bool:
    is_function = getattr(event, "is_python_function", None)
    if is_function is not None:
        return bool(is_function())
    return FRAME.match(name) is not None or name.startswith(("<built-in ", "nn.Module: "))


def _plain(role: Role | None, name: str) -> str:
    if role is Role.PHASE:
        return name[len(PHASE) :]
    return name[len(MODULE) :] if role is Role.MODULE else name
