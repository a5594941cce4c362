"""Tracks every tensor of some steps on the CPU: its allocation site, and the moments of allocation and
free."""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, UntypedStorage, nn
from torch._ops import OpOverload

from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking import frames
from harness.tracking.blocks import GuardedCall, LiveBlock, TrackingResult
from harness.tracking.frames import StackReader
from harness.tracking.modules import ModuleTrail
from harness.tracking.owners import OwnedTensor
from harness.tracking.replaced import ReplacedBlocks, without_replaced
from harness.tracking.storages import StorageWatch
from harness.tracking.traces import Action, TraceLog
from harness.tracking.tracked_blocks import (
    TrackedBlock,
    alive_at,
    high_water_mark,
    most_saved,
    retained_blocks,
    to_live_block,
)

# The most live blocks that are tracked.
MOST_LIVE = 200_000


class TensorTracker:
    """Tracks tensors with a dispatch mode that is on within the phases of a step, and between them too where
    a step computes there.

    Usage: `start`, then for each step `begin_step`, the phases in `phase`, `end_step`; finally `stop`. Used
    on the training thread; tensors may be freed on any. A failure in `guarded` does not break the tracked
    step.
    """

    def __init__(self, model: nn.Module, guarded: GuardedCall, most_live: int = MOST_LIVE) -> None:
        self._guarded = guarded
        self._most_live = most_live
        self._moments = itertools.count(1)
        self._watch: StorageWatch[TrackedBlock] = StorageWatch(self._born, self._died)
        self._stacks = StackReader()
        self._trail = ModuleTrail(model)
        self._live: dict[int, TrackedBlock] = {}
        self._phase: Phase | None = None
        self._is_between = False
        self._step = 0
        self._missed = 0
        self._trace: TraceLog | None = None
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._new_blocks: list[TrackedBlock] = []
        self._freed_blocks: list[TrackedBlock] = []
        self._peak_bytes = -1
        self._peak_blocks: list[LiveBlock] = []
        self._activations: dict[str, int] = {}
        self._replaced = ReplacedBlocks()

    def start(self, owned: Iterable[OwnedTensor]) -> None:
        """Begin with the existing tensors and their owners."""
        self._trail.start()
        for tensor, owner in owned:
            block = self._watch.adopt(tensor)
            if block is not None and block.owner is None:
                block.owner = owner

    def begin_window(self) -> None:
        """Start recording for `end_window`."""
        self._step = 0
        self._forget_steps()
        self._trace = TraceLog(time.time_ns)

    def begin_step(self) -> None:
        """Begin a step."""
        self._step += 1
        self._new_blocks.clear()
        self._freed_blocks.clear()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Track allocations in a phase."""
        self._phase = phase
        if phase is Phase.DATA_WAIT:
            self._trail.begin_pass()
        first = len(self._new_blocks)
        try:
            with nullcontext() if self._is_between else self._watch:
                yield
        finally:  # Also at the end of a loader, which raises StopIteration.
            if self._is_between:
                self._phase = None
        if phase is Phase.FORWARD and self._trace is not None:
            self._forward_ended(first)

    def follow_between(self) -> None:
        """Track allocations between phases too from now on, on this thread, until `leave_between`."""
        if not self._is_between:
            self._is_between, self._phase = True, None
            self._watch.enter_below()

    def leave_between(self) -> None:
        """Track allocations in phases only. Idempotent."""
        if self._is_between:
            self._is_between = False
            self._watch.leave_below()

    def own(self, owned: Iterable[OwnedTensor]) -> None:
        """Set the owners of new tensors."""
        for tensor, owner in owned:
            block = self._watch.key_of(tensor)
            if block is None:
                block = self._watch.adopt(tensor)
                if block is None:
                    continue
                block.step = self._step
            is_input = owner.category is MemoryCategory.INPUTS
            is_open = block.owner is None or block.owner.category is MemoryCategory.UNKNOWN
            # A tracked input has a better name: its allocation site.
            if is_open and not (is_input and block.phase is not None):
                block.owner = owner

    def end_step(self) -> None:
        """End a step, and record its high-water mark if it is the highest so far."""
        blocks = [block for block in list(self._new_blocks) if block.is_counted]
        for block in blocks:
            block.outlived = block.died is None
        every = list({id(b): b for b in (*self._live.values(), *self._freed_blocks, *blocks)}.values())
        if self._trace is not None:
            self._replaced.end_step(self._live.copy().values())
        moment, most_bytes = high_water_mark(every)
        if most_bytes > self._peak_bytes:
            self._peak_bytes = most_bytes
            self._peak_blocks = [to_live_block(block) for block in alive_at(every, moment)]

    def end_window(self) -> TrackingResult:
        """Return the result of the steps since `begin_window`."""
        live = list(self._live.values())
        replaced = self._replaced.find()
        retained = without_replaced(map(to_live_block, retained_blocks(live, self._step)), replaced)
        raw = None if self._trace is None else self._trace.snapshot(live)
        note = (
            ""
            if not self._missed
            else f"{self._missed:,} blocks beyond {self._most_live:,} were not tracked."
        )
        if self._trace is not None and self._trace.note:
            note = f"{note} {self._trace.note}".strip()
        activations = dict(self._activations)
        result = TrackingResult(self._peak_blocks, retained, activations, raw, note, replaced=replaced)
        self._trace = None
        self._forget_steps()
        return result

    def site_of(self, tensor: Tensor) -> str | None:
        """Return the allocation site of a tensor; None if it was not tracked."""
        block = self._watch.key_of(tensor)
        return None if block is None or not block.stack else frames.site(block.stack)

    def live(self) -> list[LiveBlock]:
        """Return the live blocks; from any thread."""
        return [to_live_block(block) for block in list(self._live.values())]

    def stop(self) -> None:
        """Stop tracking. Idempotent."""
        self.leave_between()
        self._trail.stop()
        self._watch.forget()
        self._live.clear()
        self._trace = None
        self._forget_steps()

    def _born(self, storage: UntypedStorage, size_bytes: int, function: OpOverload | None) -> TrackedBlock:
        moment = next(self._moments)
        step = self._step if function is not None else 0
        block = TrackedBlock(size_bytes, 0, moment, step, None if function is None else self._phase)
        if len(self._live) >= self._most_live:
            self._missed += 1
            block.is_counted = False
            return block
        self._live[id(block)] = block
        self._guarded("tracking tensors", lambda: self._describe(block, storage, function))
        return block

    def _describe(self, block: TrackedBlock, storage: UntypedStorage, function: OpOverload | None) -> None:
        block.address = storage.data_ptr()
        if function is None:
            return
        block.stack = self._stacks.read()
        block.module = self._trail.current()
        block.is_inside = self._trail.is_inside()
        if self._trace is not None:
            self._new_blocks.append(block)
            self._trace.add(Action.ALLOC, block.address, block.size_bytes, block.stack)

    def _died(self, block: TrackedBlock) -> None:
        block.died = next(self._moments)
        if not block.is_counted:
            return
        self._live.pop(id(block), None)
        if self._trace is not None:
            self._freed_blocks.append(block)
            self._trace.add(Action.FREE, block.address, block.size_bytes, block.stack)

    def _forward_ended(self, first: int) -> None:
        blocks = self._new_blocks[first:]
        for block in blocks:
            block.saved = block.died is None
        for path, size_bytes in most_saved([blocks]).items():
            self._activations[path] = max(self._activations.get(path, 0), size_bytes)
