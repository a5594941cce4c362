"""Steps with given phase times, in milliseconds."""

from collections.abc import Sequence
from typing import Any

from harness.records.run import StepRow
from tests.store_factories import a_step

_MS = 1_000_000


def a_timed_step(
    step: int = 1,
    *,
    wait: float = 0.0,
    h2d: float = 0.0,
    forward: float = 3.0,
    backward: float = 6.0,
    optimizer: float = 1.0,
    rest: float = 0.0,
    **more: Any,
) -> StepRow:
    """A step on the CPU's clock that ends where the next begins, 10 ms long by default."""
    phases = [round(value * _MS) for value in (wait, h2d, forward, backward, optimizer)]
    step_ns = sum(phases) + round(rest * _MS)
    names = ("data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns")
    values = dict(zip(names, phases, strict=True)) | {"step_ns": step_ns, "t_ns": step * step_ns} | more
    return a_step(step)._replace(**values)


def on_device(row: StepRow, *, gap: float, parts: Sequence[float]) -> StepRow:
    """`row` with device times: its gap, and copy, forward, backward, optimizer."""
    h2d, forward, backward, optimizer = (round(value * _MS) for value in parts)
    return row._replace(
        device_step_ns=h2d + forward + backward + optimizer,
        device_gap_ns=round(gap * _MS),
        device_h2d_ns=h2d,
        device_forward_ns=forward,
        device_backward_ns=backward,
        device_optimizer_ns=optimizer,
    )


def some_steps(count: int = 100, /, **times: float) -> list[StepRow]:
    """`count` equal steps, one after the other."""
    return [a_timed_step(step, **times) for step in range(1, count + 1)]


def some_device_steps(
    count: int = 100, /, *, gap: float, parts: Sequence[float], **times: float
) -> list[StepRow]:
    """`count` equal steps with device times."""
    return [on_device(row, gap=gap, parts=parts) for row in some_steps(count, **times)]
