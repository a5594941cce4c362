"""Tracks allocations on a GPU with the caching allocator's bounded history."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking import frames
from harness.tracking.allocator_trace import TracedBlock, traced_blocks
from harness.tracking.blocks import LiveBlock, Owner, TrackingResult
from harness.tracking.modules import ModuleTrail
from harness.tracking.owners import OwnedTensor, address_of, other_tensors, parts_of, without_wrappers
from harness.tracking.replaced import ReplacedBlocks, without_replaced
from harness.tracking.snapshot_file import without_folders
from harness.tracking.traces import MOST_ENTRIES
from harness.tracking.tracked_blocks import (
    alive_at,
    high_water_mark,
    most_saved,
    retained_blocks,
    to_live_block,
)

_MOST_CLAIMS = 1_000_000
# More blocks of that size are tensors: a process has a workspace of cuBLAS for each thread and stream that
# multiplies matrices.
_MOST_WORKSPACES = 4
_WORKSPACE = Owner(MemoryCategory.LIBRARIES, None, "cuBLAS workspace (by its size)")
_LASTING = (MemoryCategory.WEIGHTS, MemoryCategory.BUFFERS, MemoryCategory.OPTIMIZER)


class AllocatorHistory(Protocol):
    """The caching allocator's history; tests have a fake without a GPU."""

    def follow(self) -> None:
        """Record every allocation, with its Python stack, in a bounded ring."""
        ...

    def keep(self) -> None:
        """Record the Python stacks of live blocks, and no events."""
        ...

    def off(self) -> None:
        """Record nothing."""
        ...

    def is_foreign(self) -> bool:
        """Return whether a history is recorded that was not switched on here: any call above would end it."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return segments and events, as `torch.cuda.memory._snapshot`."""
        ...


class MemoryHistory(Protocol):
    """The functions of `torch.cuda.memory` in use."""

    def _record_memory_history(
        self,
        enabled: Literal["state", "all"] | None,
        context: Literal["state", "alloc", "all"] | None = ...,
        stacks: Literal["python", "all"] = ...,
        max_entries: int = ...,
    ) -> None: ...

    def _snapshot(self) -> dict[str, Any]: ...


class CudaHistory:
    """torch's history, with Python stacks only: C++ stacks take ten times as long.

    Every change of the mode goes through None, which empties torch's ring of events in every version. From
    "all" to "state" the ring would shrink to one entry without changing the position of the next write, and
    that write is unchecked: after more than `MOST_ENTRIES` events it corrupts the heap.
    """

    def __init__(
        self, memory: MemoryHistory | None = None, is_enabled: Callable[[], bool] | None = None
    ) -> None:
        """`memory` replaces torch.cuda.memory in tests, and `is_enabled` torch's function that returns
        whether a history is recorded, by whomever."""
        self._memory: Any = torch.cuda.memory if memory is None else memory
        self._is_enabled = is_enabled or _is_history_enabled
        self._is_own = False

    def follow(self) -> None:
        """Record every allocation."""
        self.off()
        self._is_own = True
        self._memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MOST_ENTRIES
        )

    def keep(self) -> None:
        """Record the stacks of live blocks."""
        self.off()
        self._is_own = True
        self._memory._record_memory_history(enabled="state", context="state", stacks="python")

    def off(self) -> None:
        """Record nothing."""
        self._memory._record_memory_history(enabled=None)
        self._is_own = False

    def is_foreign(self) -> bool:
        """Return whether a history is recorded that was not switched on here."""
        if not self._is_enabled():
            self._is_own = False  # The script has ended it.
            return False
        return not self._is_own

    def snapshot(self) -> dict[str, Any]:
        """Return segments and events."""
        snapshot: dict[str, Any] = self._memory._snapshot()
        return snapshot


def _is_history_enabled() -> bool:
    return torch.cuda.is_initialized() and bool(torch._C._cuda_isHistoryEnabled())


class _Mark(NamedTuple):
    """The phase of a tracked step from `time_us` on; None between phases."""

    time_us: int
    phase: Phase | None
    step: int


class HistoryTracker:
    """Like `harness.tracking.tensor_tracker.TensorTracker`, on a GPU.

    The allocator records addresses and times; module and phase are joined to its events by the wall clock. In
    the backward pass, which runs on its own thread without Python, the module is known only for gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        device_index: int,
        history: AllocatorHistory,
        hooked: bool = True,
        unix_ns: Callable[[], int] = time.time_ns,
        workspace_bytes: int | None = None,
    ) -> None:
        """`hooked`: track modules too, which would recompile compiled ones. `workspace_bytes` is the size of
        a workspace of cuBLAS."""
        self._workspace_bytes = workspace_bytes
        self._device_index = device_index
        self._history = history
        self._unix_ns = unix_ns
        self._trail = ModuleTrail(model, self._module_changed) if hooked else None
        self._owners: dict[int, list[tuple[int, Owner]]] = {}
        self._is_tracking, self._since_us = False, 0
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._marks: list[_Mark] = []
        self._modules: list[tuple[int, str | None]] = []
        self._ends_us: list[int] = []
        self._step = self._count = 0

    def start(self, owned: Iterable[OwnedTensor]) -> None:
        """Begin with the existing tensors and their owners."""
        self._history.keep()
        self._set_owners(owned, 0)

    def begin_window(self) -> None:
        """Start recording events."""
        self._forget_steps()
        self._is_tracking, self._since_us = True, self._now_us()
        if self._trail is not None:
            self._trail.start()
        self._history.follow()

    def begin_step(self) -> None:
        """Begin a step."""
        self._step += 1
        if self._trail is not None:
            self._trail.begin_pass()

    def follow_between(self) -> None:
        """Do nothing: the allocator's history has all allocations."""

    def leave_between(self) -> None:
        """Do nothing."""

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Record the start and end of a phase; outside of a window there are no events to join."""
        if not self._is_tracking:
            yield
            return
        self._marks.append(_Mark(self._now_us(), phase, self._step))
        try:
            yield
        finally:
            self._marks.append(_Mark(self._now_us(), None, self._step))

    def own(self, owned: Iterable[OwnedTensor]) -> None:
        """Set the owners of the existing tensors. Outside of a window the time of an allocation is unknown,
        so only lasting tensors get one."""
        if self._is_tracking:
            self._set_owners(owned, self._now_us())
        else:
            self._set_owners((o for o in owned if o.owner.category in _LASTING), self._now_us())

    def end_step(self) -> None:
        """End a step."""
        self._ends_us.append(self._now_us())

    def end_window(self) -> TrackingResult:
        """Return the result of the steps since `begin_window`."""
        raw = self._history.snapshot()
        self._history.keep()
        if self._trail is not None:
            self._trail.stop()
        blocks = traced_blocks(raw, self._device_index, self._since_us)
        self._describe_all(blocks)
        moment, _ = high_water_mark(blocks)
        live = [to_live_block(block) for block in alive_at(blocks, moment)]
        levels = ReplacedBlocks()
        for end_us in self._ends_us:
            levels.end_step(block for block in blocks if _is_live_at(block, end_us))
        replaced = levels.find()
        retained = without_replaced(map(to_live_block, retained_blocks(blocks, self._step)), replaced)
        full = any(len(trace) >= MOST_ENTRIES for trace in raw.get("device_traces", []))
        note = f"Only the last {MOST_ENTRIES:,} events were recorded." if full else ""
        self._is_tracking = False
        followed = TrackingResult(
            live,
            retained,
            most_saved(self._forwards(blocks)),
            without_folders(raw),
            note,
            replaced=replaced,
        )
        self._forget_steps()
        return followed

    def live(self) -> list[LiveBlock]:
        """Return the live blocks. Slow: it reads the allocator's whole state."""
        blocks = traced_blocks(self._history.snapshot(), self._device_index)
        self._describe_all(blocks)
        return [to_live_block(block) for block in blocks if block.died is None]

    def site_of(self, tensor: Tensor) -> str | None:
        """Return the allocation site of a tensor; None if its block is older than the tracking. As slow as
        `live`."""
        addresses = {address_of(part) for part in parts_of(tensor)}
        for block in traced_blocks(self._history.snapshot(), self._device_index):
            if block.address in addresses and block.died is None and block.stack:
                return frames.site(block.stack)
        return None

    def stop(self) -> None:
        """Stop recording. Idempotent."""
        if self._trail is not None:
            self._trail.stop()
        self._history.off()
        self._is_tracking = False
        self._owners.clear()
        self._forget_steps()

    def _now_us(self) -> int:
        return self._unix_ns() // 1000

    def _module_changed(self, path: str | None) -> None:
        self._modules.append((self._now_us(), path))

    def _set_owners(self, owned: Iterable[OwnedTensor], time_us: int) -> None:
        for tensor, owner in without_wrappers(owned):
            address = address_of(tensor)
            if address is None:
                continue
            if not self._is_tracking or self._count >= _MOST_CLAIMS:
                self._owners[address] = [(time_us, owner)]
            else:
                self._count += 1
                self._owners.setdefault(address, []).append((time_us, owner))

    def _describe_all(self, blocks: Sequence[TracedBlock]) -> None:
        for block in blocks:
            self._describe(block)
        size = self._workspace_bytes
        alike = [b for b in blocks if b.size_bytes == size and b.owner is None and _is_older(b)]
        if 0 < len(alike) <= _MOST_WORKSPACES:
            tensors = {address_of(one.tensor) for one in other_tensors("cuda", set())}
            for block in alike:
                if block.address not in tensors:
                    block.owner = _WORKSPACE

    def _describe(self, block: TracedBlock) -> None:
        block.owner = self._owner(block)
        if block.born_us is None:
            return
        mark = _at(self._marks, block.born_us)
        if mark is None:
            return
        block.step, block.phase = mark.step, mark.phase
        if mark.phase is None:
            return
        died_us = block.died_us
        ends_us = self._ends_us[mark.step - 1] if mark.step <= len(self._ends_us) else None
        block.outlived = died_us is None or (ends_us is not None and died_us > ends_us)
        if mark.phase is Phase.FORWARD:
            block.saved = died_us is None or died_us > self._end_of(mark)
        if mark.phase in (Phase.FORWARD, Phase.BACKWARD):
            place = bisect_right(self._modules, block.born_us, key=lambda change: change[0]) - 1
            block.module = self._modules[place][1] if place >= 0 else None
            block.is_inside = block.module is not None

    def _owner(self, block: TracedBlock) -> Owner | None:
        """Return the newest owner of the address during the block's lifetime."""
        born_us, died_us, owner = block.born_us or 0, block.died_us, None
        for time_us, claimed in self._owners.get(block.address, ()):
            if born_us <= time_us and (died_us is None or time_us < died_us):
                owner = claimed
        return owner

    def _end_of(self, mark: _Mark) -> int:
        place = bisect_right(self._marks, mark.time_us, key=lambda other: other.time_us)
        return self._marks[place].time_us if place < len(self._marks) else mark.time_us

    def _forwards(self, blocks: Iterable[TracedBlock]) -> Iterable[list[TracedBlock]]:
        """Return the blocks of each forward pass, in the order of the passes."""
        passes: dict[int, list[TracedBlock]] = {}
        for block in blocks:
            if block.phase is Phase.FORWARD and block.born_us is not None:
                mark = _at(self._marks, block.born_us)
                passes.setdefault(0 if mark is None else mark.time_us, []).append(block)
        return passes.values()


def _at(marks: list[_Mark], time_us: int) -> _Mark | None:
    place = bisect_right(marks, time_us, key=lambda mark: mark.time_us) - 1
    return marks[place] if place >= 0 else None


def _is_older(block: TracedBlock) -> bool:
    """Return whether a live block is older than the tracking."""
    return block.died is None and block.born_us is None and not block.stack


def _is_live_at(block: TracedBlock, time_us: int) -> bool:
    has_begun = block.born_us is not None and block.born_us <= time_us
    return has_begun and (block.died_us is None or block.died_us > time_us)
