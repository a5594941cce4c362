"""Snapshots of a live run's memory: a census after the warm-up, and tracked steps on request.

Everything runs between two steps and in flagged steps; without a request there is no overhead on the
training thread.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.analysis.memory.snapshots import retained_bytes_per_step
from harness.device.allocated import allocated_bytes
from harness.errors import StepscopeError
from harness.records.memory import SnapshotReason
from harness.records.run import CommandKind, CommandRow, CommandState, DeviceKind, StepFlag
from harness.tracking.history import AllocatorHistory
from harness.tracking.owners import divide, sizes
from harness.watch.boundary import Boundary, StepAction
from harness.watch.capture.hunting import SOURCE as HUNTER
from harness.watch.capture.hunting import HuntResult
from harness.watch.capture.snapshot_rows import (
    Census,
    SnapshotRows,
    SnapshotWindow,
    SnapshotWriter,
    event,
    history_refusal,
    hunt_refusal,
)
from harness.watch.capture.tracker import Tracker
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch
from harness.watch.training import Call, Training, Wrapped

# The last step of the warm-up: it has gradients and the optimizer's state, and is left out of statistics.
CENSUS_STEP = 5
DEFAULT_STEPS = 3
MOST_STEPS = 50
# Steps timed before tracking starts, as the reference for its slowdown.
_ORDINARY_STEPS = 3
_NAME = "snapshots"
_BROKEN = "see the run's output for the reason"


class SnapshotRequest(NamedTuple):
    """A requested snapshot; `command_id` is None if no answer is needed, and `verdict_slope` the growth in
    bytes per step that the hunt for a leak is about, where known. `is_doubtful` is whether that growth may
    come from growing inputs."""

    reason: SnapshotReason
    steps: int
    command_id: str | None
    verdict_slope: float | None = None
    is_doubtful: bool = False


@dataclass
class _Open:
    """A snapshot in progress."""

    request: SnapshotRequest
    ordinary_ns: list[int] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)
    heap_bytes: list[int | None] = field(default_factory=list)
    is_following: bool = False
    residual_bytes: int | None = None
    took_ns: int = 0
    began_ns: int = 0
    # The step under way; when it comes again it has failed.
    step: int = 0


class Snapshots(StepAction):
    """Takes snapshots, on the training thread.

    Attributes:
        live_allocations: live allocations by site while allocations are followed; from any thread.
        hunt_result: the result of the newest hunt for a leak; None before it.
    """

    commands = frozenset({CommandKind.SNAPSHOT})
    capture = "snapshot"

    def __init__(
        self,
        context: RunContext,
        training: Training,
        memory: MemoryWatch,
        folder: Path,
        history: AllocatorHistory | None = None,
    ) -> None:
        """`folder` is where files go; `history` is CUDA's, for which a fake stands in in tests."""
        self._context = context
        self._training = training
        self._device = context.device
        self._journal = context.journal
        self._memory = memory
        self._guarded = context.guard.run
        self._clock_ns = context.clock_ns
        self._tracker = Tracker(context, training, history)
        self.live_allocations = self._tracker.live_allocations
        self._writer = SnapshotWriter(training, folder, context.clock_ns)
        self._requests: deque[SnapshotRequest] = deque()
        self._open: _Open | None = None
        self._counted: tuple[Census, int] | None = None
        self._awaited: Wrapped | None = None
        self._history_refusal: str | None = None
        self.hunt_result: HuntResult | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a snapshot is requested or in progress, or a census."""
        return any((self._open, self._requests, self._counted, self._awaited))

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Take a snapshot as `command` says ({"steps": 1…50}), or answer why not."""
        request: SnapshotRequest | None = None
        try:
            request = _request(command)
            if (refusal := self._tracker.refusal) is not None:
                raise StepscopeError(refusal)
            is_busy = self._open is not None or bool(self._requests)
            if is_busy and request.reason is not SnapshotReason.LEAK:
                raise StepscopeError("A snapshot is already in progress; send the request again after it.")
        except StepscopeError as error:
            if command.source == HUNTER:
                is_doubtful = request is not None and request.is_doubtful
                self._refuse_hunt(boundary.step, str(error), is_doubtful=is_doubtful)
            else:
                self._context.answer(command.command_id, CommandState.REJECTED, boundary.step, str(error))
            return
        self._requests.append(request)

    def before_step(self, boundary: Boundary) -> None:
        """Begin, time or end tracking where that is due before the next step."""
        step, was_busy = boundary.step, self.is_busy
        if not self._guarded(_NAME, lambda: self._advance(step, boundary.is_settled)):
            self._leave(step, CommandState.REJECTED, f"The snapshot failed: {_BROKEN}.")
        if self._open is not None and self._open.is_following:
            boundary.flag(StepFlag.TRACKED)
        if was_busy:
            boundary.restart()

    def finish(self, boundary: Boundary) -> None:
        """Write the snapshot in progress; the run ends before the next step."""
        current, step = self._open, boundary.step
        if current is not None and current.is_following:
            self._guarded(_NAME, lambda: self._end(current, step))
        self.abort(step, "The run ended before the snapshot.")

    def abort(self, step: int, why: str) -> None:
        """Drop requests and restore the training's functions. Idempotent."""
        self._leave(step, CommandState.EXPIRED, why)
        if self._awaited is not None:
            self._awaited.remove()
            self._awaited = None  # It refers to the script's optimizers.
        self._tracker.stop()

    def _advance(self, step: int, is_settled: bool) -> None:
        now_ns = self._clock_ns()
        if step > CENSUS_STEP:
            self._write_census(step)
        if (self._open or self._requests) and (refusal := self._tracker.refusal) is not None:
            self._leave(step, CommandState.REJECTED, refusal)
        if self._open is None and self._requests:
            self._open = _Open(self._requests.popleft())
        elif self._open is not None:
            self._time(self._open, now_ns, step)
        current = self._open
        if current is None or not current.is_following:
            self._follow_setting(step)
        if step == CENSUS_STEP and self._awaited is None:
            self._count_at_update()
        if current is None:
            return
        if not current.is_following and (not is_settled or len(current.ordinary_ns) >= _ORDINARY_STEPS):
            self._begin(current)
        if current.is_following:
            self._tracker.begin_step()
        current.began_ns, current.step = self._clock_ns(), step

    def _follow_setting(self, step: int) -> None:
        """Put the setting `memory_history` into effect; where that cannot be, write an event, once."""
        refusal = self._tracker.follow_setting()
        if refusal is not None and refusal != self._history_refusal:
            self._journal.put(history_refusal(self._clock_ns(), step, refusal))
        self._history_refusal = refusal

    def _time(self, current: _Open, now_ns: int, step: int) -> None:
        """Record the duration of the step that has just ended."""
        took_ns, has_failed = now_ns - current.began_ns, step == current.step
        if has_failed and not current.is_following:
            return
        if has_failed and not current.steps_ns:
            self._leave(step, CommandState.REJECTED, "Memory ran out in the first tracked step.")
            return
        if has_failed:
            self._close(step)
            return
        if not current.is_following:
            current.ordinary_ns.append(took_ns)
            return
        self._tracker.end_step()
        current.steps_ns.append(took_ns)
        if self._device.facts.kind is DeviceKind.CPU:
            current.heap_bytes.append(allocated_bytes(self._device.read_allocator()))
        if len(current.steps_ns) >= current.request.steps or not self._tracker.is_attached:
            self._close(step)

    def _end(self, current: _Open, step: int) -> None:
        """The step before `step` was the run's last."""
        self._time(current, self._clock_ns(), step)
        if self._open is not None:
            self._close(step)

    def _begin(self, current: _Open) -> None:
        began_ns = self._clock_ns()
        before_bytes = allocated_bytes(self._device.read_allocator())
        known_bytes = self._tracker.begin_window()
        if self._tracker.sees_all:
            current.residual_bytes = 0
        elif before_bytes is not None:
            current.residual_bytes = max(0, before_bytes - known_bytes)
        self._memory.restart(current.request.steps + 1)
        current.is_following = True
        current.took_ns = self._clock_ns() - began_ns

    def _close(self, step: int) -> None:
        current = self._open
        assert current is not None
        began_ns = self._clock_ns()
        is_hunt = current.request.reason is SnapshotReason.LEAK
        followed, tensor_sizes = self._tracker.end_window(is_hunt=is_hunt), self._tracker.sizes
        self._follow_setting(step)
        reserved = self._device.read_allocator().reserved_bytes
        window = SnapshotWindow(
            current.request.reason,
            self._tracker.method,
            step - 1,
            current.steps_ns,
            current.ordinary_ns,
            current.residual_bytes,
            current.took_ns + self._clock_ns() - began_ns,
            current.request.command_id,
            current.heap_bytes,
            current.request.verdict_slope,
        )
        rows = self._writer.sum_up(followed, tensor_sizes, window, reserved)
        self._open = None
        if is_hunt:
            copied_bytes = max((one.block.size_bytes for one in followed.replaced), default=0)
            self.hunt_result = HuntResult(
                step - 1,
                rows.heap_growth is not None,
                copied_bytes,
                has_site=rows.has_growth,
                retained_bytes_per_step=retained_bytes_per_step(rows.allocations, len(window.steps_ns)),
            )
        self._put(rows)
        is_doubtful, command_id = current.request.is_doubtful, current.request.command_id
        self._journal.put(event(rows.snapshot, command_id, is_doubtful=is_doubtful))
        if command_id is not None:
            self._context.answer(command_id, CommandState.APPLIED, step, rows.snapshot.message)

    def _count_at_update(self) -> None:
        """Wrap the next update, once: before it all gradients exist."""

        def counted(update: Call) -> Call:
            def counted_update() -> None:
                self._take_census()
                update()

            return counted_update

        self._awaited = self._training.wrap("update", counted)

    def _take_census(self) -> None:
        """Count the tensors, if that is due."""
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.remove()
            self._guarded("memory census", self._count)

    def _count(self) -> None:
        began_ns = self._clock_ns()
        every = sizes(self._training.model, self._training.optimizer)
        census = Census(*divide(every, self._device.torch_device), self._device.read_allocator())
        self._counted = (census, self._clock_ns() - began_ns)

    def _write_census(self, step: int) -> None:
        self._take_census()  # Where the update is in a compiled function, which calls nothing of ours.
        if self._counted is not None:
            census, took_ns = self._counted
            self._counted = None
            self._put(self._writer.count(census, step - 1, took_ns))

    def _put(self, rows: SnapshotRows) -> None:
        for row in rows.allocations:
            self._journal.put(row)
        for module in rows.modules:
            self._journal.put(module)
        self._journal.put(rows.snapshot)

    def _leave(self, step: int, state: CommandState, why: str) -> None:
        """Drop the snapshot in progress and all requests."""
        current, self._open = self._open, None
        waiting = [*([] if current is None else [current.request]), *self._requests]
        self._requests.clear()
        for request in waiting:
            if request.command_id is not None:
                self._context.answer(request.command_id, state, step, why)
            elif state is CommandState.REJECTED:
                self._refuse_hunt(step, why, is_doubtful=request.is_doubtful)
        if current is not None:
            self._tracker.stop()

    def _refuse_hunt(self, step: int, why: str, *, is_doubtful: bool) -> None:
        """Write an event: nobody has sent the request, so no answer says it. While it is in doubt whether
        there is a leak at all, none."""
        self.hunt_result = HuntResult(step, is_beside_tensors=False, refusal=why)
        if not is_doubtful:
            self._journal.put(hunt_refusal(self._clock_ns(), step, why))


def _request(command: CommandRow) -> SnapshotRequest:
    """Parse the request of a command; raises StepscopeError."""
    try:
        options = json.loads(command.payload or "{}")
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"The request is not JSON ({error}); the request was rejected.") from None
    steps = options.get("steps", DEFAULT_STEPS) if isinstance(options, dict) else None
    if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
        raise StepscopeError(f"A snapshot tracks 1 to {MOST_STEPS} steps, not {str(steps)[:40]}.")
    if command.source == HUNTER:
        slope = options.get("bytes_per_step")
        verdict_slope = float(slope) if isinstance(slope, int | float) else None
        is_doubtful = options.get("is_doubtful") is True
        return SnapshotRequest(SnapshotReason.LEAK, steps, None, verdict_slope, is_doubtful)
    return SnapshotRequest(SnapshotReason.REQUESTED, steps, command.command_id)
