"""Injected faults: each leaks, fragments or runs out of memory for the reason in its name.

They are real: the same references keep the memory as in a program with that mistake. Without a fault nothing
here is called.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from harness.data.source import Batch, DataSource, Indices
from harness.data.synthetic import SyntheticSource
from harness.device.protocol import TensorDevice
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.settings.injection import Fault, Injection
from harness.watch.training import Call, Replaced, Wrapper

# Bytes of one retained line of text, without its entry in the list.
_LINE_BYTES = 256
_LINES = 32
_FLOAT_BYTES = 4
# Below the size that glibc maps by itself, so that it lies in the heap.
_CHUNK_BYTES = 60 * 2**10
_CHUNK_STEP_BYTES = 16
_MOST_BUFFERS = 2_048
_SEGMENT_BYTES = 12 * 2**20
# Requests above 10 MiB have a segment of their own on CUDA, rounded to 2 MiB.
_SEGMENT_STEP_BYTES = 2 * 2**20
_IMPOSSIBLE_BYTES = 2**50
# The buffer's name.
LEFT_BEHIND = "left_behind"


class Mistake(Protocol):
    """A mistake in a training loop."""

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Run the mistake on the loss of a micro-batch."""
        ...


class Wrappable(Protocol):
    """The interface that a fault needs."""

    def wrap(self, call: str, wrapper: Wrapper) -> Replaced:
        """Replace a function that a step calls by `wrapper(function)`."""
        ...


class LossRead:
    """`if loss.item() > …`: the CPU waits for the forward pass, and the device then for the CPU."""

    def after_forward(self, loss: Tensor, _step_bytes: int, /) -> None:
        """Read the loss."""
        loss.item()


class BufferLeftBehind:
    """A buffer of the model created after the model was moved: it stays in host memory."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Copy it to the device."""
        if not hasattr(self._model, LEFT_BEHIND):
            values = torch.zeros(_floats(step_bytes), device="cpu")
            self._model.register_buffer(LEFT_BEHIND, values, persistent=False)
        self._model.get_buffer(LEFT_BEHIND).to(loss.device)


class LossAddedUp:
    """`total += loss`: every loss keeps its graph, and the graph the tensors saved for backward."""

    def __init__(self) -> None:
        self._total: Tensor | float = 0.0

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Add a mean; the graph keeps its weights."""
        weights = torch.ones(_floats(step_bytes), device=loss.device)
        self._total = self._total + (weights * loss).mean()


class HiddenStateCarried:
    """A recurrent state carried into the next step with the graph of all previous steps."""

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._state = torch.zeros(())

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Take one step of the recurrence, without `detach`."""
        if self._weight is None:
            self._weight = torch.full((), 0.5, device=loss.device, requires_grad=True)
            self._state = torch.zeros(_floats(step_bytes), device=loss.device)
        self._state = torch.tanh(self._state * self._weight + loss.detach())


class OutputsCollected:
    """`outputs.append(output)`: a list of every step's outputs."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Keep one output."""
        self._outputs.append(loss.detach().expand(_floats(step_bytes)).clone())


class CacheGrows:
    """A cache by step, a key that never recurs."""

    def __init__(self) -> None:
        self._cache: dict[int, Tensor] = {}

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Keep one value."""
        self._cache[len(self._cache)] = torch.zeros(_floats(step_bytes), device=loss.device)


class LinesCollected:
    """A log of text lines that is never written out: Python objects, outside torch."""

    def __init__(self) -> None:
        self._records: list[list[str]] = []
        self._owed = 0

    def after_forward(self, _loss: Tensor, step_bytes: int, /) -> None:
        """Add some records of a few lines each. Python has its own pools for objects this small."""
        self._owed += step_bytes
        count, self._owed = divmod(self._owed, _LINES * _LINE_BYTES)
        for _ in range(count):
            begin = len(self._records) * _LINES
            lines = [f"sample {begin + number}: ".ljust(_LINE_BYTES - 57, ".") for number in range(_LINES)]
            self._records.append(lines)


class HeapFragmented:
    """On the CPU: buffers come and go, each a little larger than the holes left before, and at the start of
    each a few bytes stay."""

    def __init__(self) -> None:
        self._pins: list[bytearray] = []
        self._size = _CHUNK_BYTES
        self._owed = 0
        self._highest = 0

    def after_forward(self, _loss: Tensor, step_bytes: int, /) -> None:
        """Leave as many holes as make up `step_bytes`, beyond those that the model's own tensors use."""
        self._owed += step_bytes
        count, self._owed = divmod(self._owed, self._size)
        buffers: list[bytearray] = []
        pinned: list[bytearray] = []
        while len(pinned) < count and len(buffers) < _MOST_BUFFERS:
            buffers.append(bytearray(b"\1") * self._size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(buffers[-1]))
            if address > self._highest:
                self._highest = address
                pinned.append(buffers[-1])
        for buffer in pinned:
            del buffer[1:]  # Shrinks where it lies: the rest becomes a hole.
        self._pins += pinned
        self._size += _CHUNK_STEP_BYTES


class SegmentsOutgrown:
    """On CUDA: a tensor for a moment, larger than any before, so that no block the allocator has freed fits
    it; it reserves a new one."""

    def __init__(self) -> None:
        self._size = _SEGMENT_BYTES
        self._owed = 0

    def after_forward(self, loss: Tensor, step_bytes: int, /) -> None:
        """Allocate more than ever before, once that much is due."""
        self._owed += step_bytes
        if self._owed >= self._size:
            self._owed -= self._size
            torch.empty(self._size, dtype=torch.uint8, device=loss.device)
            self._size += _SEGMENT_STEP_BYTES


_MISTAKES: dict[Fault, Callable[[], Mistake]] = {
    Fault.LEAK_GRAPH: LossAddedUp,
    Fault.LEAK_HIDDEN: HiddenStateCarried,
    Fault.LEAK_LIST: OutputsCollected,
    Fault.LEAK_CACHE: CacheGrows,
    Fault.LEAK_HOST: LinesCollected,
    Fault.SYNC: LossRead,
}


class InjectedFault:
    """The fault of a run, wrapped around the calls of a step."""

    def __init__(self, injection: Injection, device: TensorDevice, model: nn.Module) -> None:
        self.injection = injection
        self._device = device
        self._mistake = _mistake(injection.fault, device, model)
        self._next_step = 1
        self._is_due = injection.fault is Fault.OOM

    def put_into(self, steps: Wrappable, settings: Settings) -> None:
        """Wrap the calls of the steps."""
        if self._mistake is not None:
            each = max(1, self.injection.step_bytes // settings.grad_accumulation)
            steps.wrap("forward", partial(_mistaken, self._mistake, each))
        elif self.injection.fault is Fault.OOM:
            steps.wrap("forward", partial(self._failing, settings.memory_cap_bytes))
            steps.wrap("tidy", self._counting)

    def _failing(self, cap_bytes: int | None, forward: Call) -> Call:
        def failing(inputs: Tensor, targets: Tensor) -> Tensor:
            if self._is_due and self._next_step >= self.injection.step:
                self._is_due = False
                self._exhaust_memory(cap_bytes)
            loss: Tensor = forward(inputs, targets)
            return loss

        return failing

    def _counting(self, tidy: Call) -> Call:
        def counting(step: int) -> None:
            self._next_step = step + 1
            tidy(step)

        return counting

    def _exhaust_memory(self, cap_bytes: int | None) -> None:
        """Request all memory of the device: together with the model that is too much. On the CPU without a
        cap the system may overcommit, so the request exceeds any machine's memory."""
        size = _IMPOSSIBLE_BYTES
        if cap_bytes is not None:
            size = cap_bytes
        elif self._device.facts.kind is not DeviceKind.CPU and self._device.facts.memory_bytes:
            size = self._device.facts.memory_bytes
        torch.empty(size, dtype=torch.uint8, device=self._device.torch_device)


def _mistaken(mistake: Mistake, step_bytes: int, forward: Call) -> Call:
    def mistaken(inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = forward(inputs, targets)
        mistake.after_forward(loss, step_bytes)
        return loss

    return mistaken


def _mistake(fault: Fault, device: TensorDevice, model: nn.Module) -> Mistake | None:
    if fault is Fault.ELSEWHERE:
        return BufferLeftBehind(model)
    if fault is Fault.FRAGMENTATION:
        return HeapFragmented() if device.facts.kind is DeviceKind.CPU else SegmentsOutgrown()
    make = _MISTAKES.get(fault)
    return None if make is None else make()


def _floats(size_bytes: int) -> int:
    return max(1, size_bytes // _FLOAT_BYTES)


class LeakySource:
    """A source that leaks part of every batch in the loader's workers, as a cache there would."""

    def __init__(self, source: DataSource, batch_bytes: int) -> None:
        self.shape = source.shape
        self.note = source.note
        self._source = source
        self._batch_bytes = batch_bytes
        self._buffers: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, indices: Indices) -> Batch:
        """Return the source's batch; in a worker, leak part of it."""
        if get_worker_info() is not None:
            self._buffers.append(np.ones(self._batch_bytes, dtype=np.uint8))
        return self._source.fetch(indices)


def leaky(source: DataSource, injection: Injection, settings: Settings) -> DataSource:
    """Return `source`, leaking in the workers if `injection` requires it and there are any."""
    if injection.fault is not Fault.LEAK_WORKER or isinstance(source, SyntheticSource):
        return source
    return LeakySource(source, max(1, injection.step_bytes // settings.grad_accumulation))
