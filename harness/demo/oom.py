"""The out-of-memory report of a simulated run, from simulated facts and the real analysis."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import (
    BatchPeak,
    FailedRequest,
    LiveCategory,
    MemoryAtFailure,
    OomFacts,
    OomPhase,
    RecentChange,
    RecentStep,
    to_json,
)
from harness.demo.machine import CONTEXT_BYTES, FACTS, PARAMETERS
from harness.records.memory import MemoryCategory, OomReportRow
from harness.records.run import DeviceKind, StepRow
from harness.settings import Settings

STEPS = 50
OUTCOME = "The run stopped, as its policy says."
_LAYERS = 12
_SITE = "harness/models/attention.py:54 forward"


class Failure(NamedTuple):
    """The failed allocation, in bytes."""

    step: int
    t_ns: int
    requested: int
    allocated: int
    cap: int
    error: str


class OomHistory:
    """The history of recent steps for a report."""

    def __init__(self) -> None:
        self._steps: deque[StepRow] = deque(maxlen=STEPS)
        self._peaks: dict[int, BatchPeak] = {}
        self._change: RecentChange | None = None

    def add_rows(self, rows: Sequence[StepRow], batch_size: int) -> None:
        """Add steps, in order."""
        self._steps.extend(rows)
        before = self._peaks.get(batch_size, BatchPeak(batch_size, 0, 0))
        peak = max([before.peak_bytes, *(row.peak_allocated_bytes or 0 for row in rows)])
        self._peaks[batch_size] = BatchPeak(batch_size, peak, before.steps + len(rows))

    def changed(self, step: int, message: str, command_id: str) -> None:
        """Record a change of settings before `step`."""
        self._change = RecentChange(step, 0, message, command_id)

    def report(self, failure: Failure, settings: Settings) -> OomReportRow:
        """Return the report's row."""
        change = self._change
        if change is not None:
            change = change._replace(steps_ago=failure.step - change.step)
        facts = OomFacts(
            step=failure.step,
            device=DeviceKind.CUDA,
            device_name=FACTS.name,
            error=failure.error,
            batch_size=settings.batch_size,
            grad_accumulation=settings.grad_accumulation,
            amp=settings.amp,
            checkpointing=settings.activation_checkpointing,
            request=_request(failure.requested),
            memory=_memory_state(failure),
            is_first_update=not self._steps,
            holders=_live_allocations(failure.allocated),
            sites=(),
            steps=tuple(_recent(row) for row in self._steps),
            peaks=tuple(self._peaks[batch] for batch in sorted(self._peaks)),
            static_bytes=16 * PARAMETERS,
            change=change,
            leak=None,
        )
        return OomReportRow(failure.t_ns, failure.step, OUTCOME, to_json(explain(facts, outcome=OUTCOME)))


def _request(size: int) -> FailedRequest:
    return FailedRequest(
        error_bytes=size,
        least_bytes=size,
        most_bytes=size,
        phase=OomPhase.FORWARD,
        module=f"blocks.{_LAYERS - 1}.feed_forward",
        module_kind="FeedForward",
        site=_SITE,
        code='output: Tensor = self.residual(functional.gelu(self.widen(states), approximate="tanh"))',
        stack=(_SITE, "harness/models/attention.py:79 forward", "harness/models/transformer.py:29 forward"),
        note=None,
    )


def _memory_state(failure: Failure) -> MemoryAtFailure:
    reserved = min(failure.cap, failure.allocated + failure.requested // 8)
    unused = reserved - failure.allocated
    return MemoryAtFailure(
        allocated_bytes=failure.allocated,
        reserved_bytes=reserved,
        free_bytes=0,
        split_free_bytes=unused,
        largest_free_bytes=unused // 4,
        private_free_bytes=0,
        waiting_bytes=0,
        device_free_bytes=(FACTS.memory_bytes or 0) - reserved - CONTEXT_BYTES,
        device_total_bytes=FACTS.memory_bytes,
        process_bytes=reserved + CONTEXT_BYTES,
        others_bytes=0,
        cap_bytes=failure.cap,
    )


def _live_allocations(allocated: int) -> tuple[LiveCategory, ...]:
    """Return the static parts, and equal shares of activations for the blocks."""
    weights = 4 * PARAMETERS
    each = (allocated - 4 * weights) // _LAYERS
    blocks = [LiveCategory(MemoryCategory.ACTIVATIONS, f"blocks.{at}", each) for at in range(_LAYERS)]
    lasting = [
        LiveCategory(MemoryCategory.OPTIMIZER, None, 2 * weights),
        LiveCategory(MemoryCategory.WEIGHTS, None, weights),
        LiveCategory(MemoryCategory.GRADIENTS, None, weights),
    ]
    return tuple(sorted([*blocks, *lasting], key=lambda holder: -holder.held_bytes))


def _recent(row: StepRow) -> RecentStep:
    return RecentStep(
        row.step, row.step_ns, row.allocated_bytes, row.peak_allocated_bytes, row.reserved_bytes
    )
