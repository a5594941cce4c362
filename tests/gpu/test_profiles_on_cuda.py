"""Profiles on a GPU: kernels with their operators and modules, beside CUDA's events, and nothing left behind.

Nothing here touches CUDA when it is imported. Run with `make gpu-check`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.profiles import by_kind
from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device, StepTicket
from harness.models.building import build_model
from harness.profiling.cupti import TEARDOWN
from harness.profiling.events import Event, Role
from harness.profiling.options import ProfileOptions
from harness.profiling.ranges import Ranges
from harness.profiling.window import WARM_UP_STEPS, ProfilerWindow
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileOpRow, ProfileRow
from harness.records.run import AckRow, CommandKind, CommandState, DeviceKind
from harness.settings.resolve import resolve
from harness.train.loop import take_step
from harness.train.workload import Workload
from harness.watch.inbox import Inbox
from tests.train_factories import FakeJournal, a_command, open_steps

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(240)]

Record = Callable[[str, object], None]


class Run:
    """A run on the GPU, a step at a time, whose profiles are taken as those of any run."""

    def __init__(self, captures: Path, **values: Any) -> None:
        self.device: Device = open_device("cuda")
        settings = resolve({"device": "cuda", "data": "synthetic", **values})
        source = open_source(settings)
        with self.device.torch_device:
            network = build_model(settings, source.shape)
        self.workload = Workload(settings, self.device, network, source)
        self.journal, self.inbox = FakeJournal(), Inbox()
        self.steps = open_steps(self.device, self.workload, self.journal, captures, inbox=self.inbox).steps
        self.step = 0

    def of(self, kind: type) -> list[Any]:
        """The rows of one kind."""
        return self.journal.of(kind)

    def take(self, steps: int) -> None:
        """Take steps as the loop does, and wait for the device at their end."""
        tickets = []
        for _ in range(steps):
            self.step += 1
            self.steps.proceed(self.step)
            tickets.append(self.take_one())
        self.device.synchronize()
        for ticket in tickets:
            if ticket is not None:
                ticket.resolve()

    def take_one(self) -> StepTicket | None:
        """One step, nothing done around it."""
        return take_step(self.workload, self.steps.timer, self.step)[1]

    def profile(self, payload: str = "{}") -> ProfileRow:
        """Ask for a profile and take the steps it needs."""
        self.inbox.put(a_command(CommandKind.PROFILE, payload, f"p{self.step}"))
        self.take(14)
        answer = self.of(AckRow)[-1]
        assert answer.state == CommandState.APPLIED, answer.message
        row = self.of(ProfileRow)[-1]
        assert isinstance(row, ProfileRow)
        return row


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(**values: Any) -> Run:
        runs.append(Run(tmp_path / str(len(runs)), **values))
        return runs[-1]

    yield begin
    for run in runs:
        run.workload.close()
    torch.cuda.empty_cache()


def test_kernels_are_recorded_with_their_operators_and_modules(
    opened: Callable[..., Run], record_property: Record
) -> None:
    run = opened(model="transformer", preset="workstation", batch_size=16)
    run.take(20)
    row = run.profile('{"steps": 3, "memory": true}')
    operators, modules = run.of(ProfileOpRow), run.of(ProfileModuleRow)
    kernels_ns = sum(op.self_device_ns for op in operators if op.is_kernel)
    claimed_ns = sum(op.self_device_ns for op in operators if not op.is_kernel)
    record_property("busy / wall", f"{(row.busy_ns or 0) / (row.wall_ns or 1):.3f}")
    record_property("kernels of known operators", f"{claimed_ns / kernels_ns:.4f}")
    record_property("slowdown", f"{row.slowdown:.3f}")
    record_property("training waited", f"{(row.took_ns or 0) / 1e6:.0f} ms")
    record_property("trace", f"{row.file_bytes} bytes")
    assert (row.on_device, row.steps) == (1, 3)
    assert 0 < (row.busy_ns or 0) <= (row.wall_ns or 0)
    assert claimed_ns == pytest.approx(kernels_ns, rel=0.02)
    assert sum(module.self_device_ns for module in modules) == kernels_ns
    kinds = {part.name: part for part in by_kind(operators, row)}
    assert kinds[OperatorKind.MATMUL].time_ns > 0
    assert kinds[OperatorKind.OPTIMIZER].time_ns > 0
    assert OperatorKind.OTHER not in kinds or kinds[OperatorKind.OTHER].time_ns < 0.2 * (row.wall_ns or 0)
    placed = {(module.module, module.phase): module.self_device_ns for module in modules}
    for phase in ("forward", "backward"):
        assert placed["blocks.0.feed_forward.widen", phase] > 0
    assert any(op.self_bytes for op in operators)


def _span_ns(step: Event, kernels: list[Event]) -> int:
    """From the first kernel's start to the last one's end, of those within a step."""
    inside = [event for event in kernels if step.start_ns <= event.start_ns < step.end_ns]
    return max(event.end_ns for event in inside) - min(event.start_ns for event in inside)


def test_events_agree_with_the_profiler_about_whole_steps_within_three_per_cent(
    opened: Callable[..., Run], record_property: Record, tmp_path: Path
) -> None:
    run = opened(model="transformer", preset="workstation", batch_size=64)
    run.take(20)
    request = ProfileOptions(5)
    window, ranges = (
        ProfilerWindow(request, tmp_path / "t.json.gz", DeviceKind.CUDA),
        Ranges(run.workload, False),
    )
    run.device.synchronize()
    window.start()
    ranges.start()
    tickets = []
    for _ in range(WARM_UP_STEPS + request.steps):
        run.steps.timer.restart()
        tickets.append(run.take_one())
        run.device.synchronize()  # Each step's kernels lie within its range then.
        window.end_step()
    ranges.stop()
    window.stop()
    assert window.result is not None
    steps = [event for event in window.result.events if event.role is Role.STEP]
    kernels = [event for event in window.result.events if event.role is Role.KERNEL]
    ratios = []
    for step, ticket in zip(steps, tickets[WARM_UP_STEPS:], strict=True):
        assert ticket is not None
        times = ticket.resolve()
        assert times is not None
        ratios.append(times.step_ns / _span_ns(step, kernels))
    ratio = statistics.median(ratios)
    record_property("events / profiler, whole steps", f"{ratio:.4f}")
    assert ratio == pytest.approx(1.0, abs=0.03)


def _block_ns(run: Run, steps: int = 100) -> float:
    """The mean step of a block, the device's work in it."""
    began_ns = time.perf_counter_ns()
    run.take(steps)
    return (time.perf_counter_ns() - began_ns) / steps


@pytest.mark.parametrize(("preset", "batch_size"), [("laptop", 1), ("workstation", 32)])
def test_a_run_is_as_fast_after_a_profile_as_before(
    opened: Callable[..., Run], record_property: Record, preset: str, batch_size: int
) -> None:
    """A run of small kernels would show what CUPTI still did at each launch."""
    run = opened(model="transformer", preset=preset, batch_size=batch_size)
    run.take(200)
    before_ns = [_block_ns(run) for _ in range(9)]
    run.profile()
    run.take(50)
    after_ns = [_block_ns(run) for _ in range(9)]
    ratio = statistics.median(after_ns) / statistics.median(before_ns)
    record_property("step before", f"{statistics.median(before_ns) / 1e6:.3f} ms")
    record_property("after / before", f"{ratio:.4f}")
    spread = max(before_ns) / statistics.median(before_ns)
    record_property("slowest block before / median", f"{spread:.4f}")
    record_property("TEARDOWN_CUPTI", os.environ.get(TEARDOWN))
    assert ratio <= max(1.02, spread)


def test_a_second_profile_soon_after_the_first_sees_as_much(opened: Callable[..., Run]) -> None:
    """Letting go of CUPTI and taking it up again leaves nothing out."""
    run = opened(model="mlp")
    run.take(20)
    counts = []
    for _ in range(3):
        run.journal.rows.clear()
        run.profile()
        counts.append(sum(op.calls for op in run.of(ProfileOpRow) if op.is_kernel))
    assert counts[0] > 0
    assert counts == pytest.approx([counts[0]] * 3, rel=0.02)


def test_ranges_for_nsight_are_there_when_the_setting_is_on(
    opened: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    push: Any = torch.cuda.nvtx.range_push

    def range_push(name: str) -> int:
        pushed.append(name)
        return int(push(name))

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", range_push)
    run = opened(model="mlp", nvtx=True)
    run.take(2)
    assert pushed == 2 * ["data_wait", "h2d", "forward", "backward", "optimizer"]
    pushed.clear()
    run = opened(model="mlp")
    run.take(2)
    assert pushed == []
