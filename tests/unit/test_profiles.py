"""Profiles of a live run: what they answer, what they leave behind, and the kinds of work they tell."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.observers.dispatch import Guard
from harness.profile_records import Kind
from harness.profiling.kinds import classify
from harness.profiling.summing import Work, by_kind
from harness.profiling.window import ProfilerWindow
from harness.records import AckRow, CommandKind, CommandState, EventKind, EventRow, StepFlag
from harness.train.control import Controller
from harness.train.inbox import Inbox
from harness.train.journal import Marks
from harness.train.memory import MemoryWatch
from harness.train.profiles import Profiles
from harness.train.snapshots import Snapshots
from harness.train.timing import StepTimer
from tests.train_factories import Clock, a_command, a_device, a_step, a_workload

pytestmark = pytest.mark.slow


def is_on() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


class Journal:
    """Keeps every row."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def put(self, row: Any) -> None:
        self.rows.append(row)

    def set_state(self, *_: Any, **__: Any) -> bool:
        return True

    def of(self, kind: type) -> list[Any]:
        return [row for row in self.rows if type(row) is kind]


class Run:
    """A small run on the CPU, a step at a time."""

    def __init__(self, captures: Path, **values: Any) -> None:
        device = a_device()
        self.workload = a_workload(device, **values)
        self.journal, self.inbox, self.marks = Journal(), Inbox(), Marks()
        clock, memory = Clock(tick_ns=1000), MemoryWatch(device)
        guard = Guard(lambda _name, _error: None)
        self.profiles = Profiles(device, self.journal, captures, guard.run, clock)
        timer = StepTimer(clock, None, memory)
        snapshots = Snapshots(self.workload, device, self.journal, memory, captures, guard.run, clock)
        rest = (self.marks, timer, memory, clock, snapshots, self.profiles)
        self.controller = Controller(self.workload, device, self.journal, self.inbox, *rest)
        self.step = 0
        self.flags: dict[int, int] = {}
        self.profiled_in: list[bool] = []

    def run(self, steps: int, within: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            if not self.controller.proceed(self.step + 1):
                return
            self.step += 1
            self.flags[self.step] = self.marks.flags
            self.profiled_in.append(is_on())
            a_step(self.workload)
            self.workload.tidy(self.step)
            within()

    def ask(self, payload: str = "{}", kind: CommandKind = CommandKind.PROFILE) -> None:
        self.inbox.put(a_command(kind, payload, f"{kind}-{len(self.inbox.commands)}"))

    @property
    def answer(self) -> AckRow:
        (found,) = self.journal.of(AckRow)
        assert isinstance(found, AckRow)
        return found

    @property
    def event(self) -> EventRow:
        (found,) = [row for row in self.journal.of(EventRow) if row.kind == EventKind.PROFILE]
        assert isinstance(found, EventRow)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Any:
    found = Run(tmp_path / "captures")
    yield found
    found.profiles.abort(0, "")
    found.workload.close()


def test_a_profile_names_the_work_of_the_steps_that_follow(run: Run, tmp_path: Path) -> None:
    run.run(8)
    run.ask('{"steps": 2}')
    run.run(6)
    assert run.answer.state == CommandState.APPLIED, run.answer.message
    detail = json.loads(run.event.detail)
    assert Kind.MATMUL in [one["kind"] for one in detail["kinds"]]
    assert sum(one["share"] for one in detail["kinds"]) == pytest.approx(1)
    assert any(one["name"] == "aten::addmm" for one in detail["longest"])
    assert [step for step, flags in run.flags.items() if flags & StepFlag.PROFILED] == [9, 10, 11]
    path = tmp_path / "captures" / detail["file"]
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["profile-1.json.gz"]


def test_the_profiler_is_on_in_its_own_steps_only(run: Run) -> None:
    run.run(8)
    run.ask('{"steps": 2}')
    run.run(6)
    assert not any(run.profiled_in[:8])
    assert not any(run.profiled_in[11:])
    assert all(run.profiled_in[9:11])


def test_a_second_profile_has_a_profiler_and_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        run.ask('{"steps": 1}')
        run.run(4)
    states = [row.state for row in run.journal.of(AckRow)]
    assert states == [CommandState.APPLIED, CommandState.APPLIED]
    files = sorted(file.name for file in (tmp_path / "captures").iterdir())
    assert files == ["profile-1.json.gz", "profile-2.json.gz"]


@pytest.mark.parametrize("payload", ['{"steps": 0}', '{"steps": 21}', '{"steps": "3"}', "[", "[]"])
def test_what_cannot_be_taken_is_refused(run: Run, payload: str) -> None:
    run.ask(payload)
    run.run(2)
    assert run.answer.state == CommandState.REJECTED
    assert not any(run.profiled_in)


def test_where_a_profiler_is_at_work_already_it_is_unavailable_and_training_goes_on(run: Run) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        run.ask()
        run.run(5)
    assert run.answer.state == CommandState.REJECTED
    assert run.answer.message.startswith("The profile is unavailable, because ")
    assert run.step == 5


def test_a_run_that_ends_within_gives_the_profile_up(run: Run) -> None:
    run.ask('{"steps": 20}')
    run.run(3)
    run.profiles.abort(run.step, "The run ended before it was taken.")
    run.profiles.abort(run.step, "The run ended before it was taken.")
    assert run.answer.state == CommandState.EXPIRED
    assert not is_on()


def test_a_step_that_fails_ends_the_profile(run: Run) -> None:
    run.ask('{"steps": 5}')
    run.run(2)
    run.step -= 1  # What recovery does: the same step again.
    run.run(1)
    assert run.answer.state == CommandState.REJECTED
    assert not is_on()


def test_a_trace_that_is_too_large_is_left_out_and_said(tmp_path: Path) -> None:
    window = ProfilerWindow(1, tmp_path / "profile-1.json.gz", False, most_bytes=10)
    window.start()
    for _ in range(2):
        torch.ones(8, 8) @ torch.ones(8, 8)
        window.end_step()
    window.stop()
    assert window.found is not None
    assert window.found.file_bytes is None
    assert "left out" in window.found.cut
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", Kind.MATMUL),
        ("aten::mm", Kind.MATMUL),
        ("ampere_sgemm_128x64_nn", Kind.MATMUL),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", Kind.MATMUL),
        ("aten::mkldnn_convolution", Kind.CONVOLUTION),
        ("aten::convolution_backward", Kind.CONVOLUTION),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32", Kind.CONVOLUTION),
        ("aten::_scaled_dot_product_flash_attention", Kind.ATTENTION),
        ("pytorch_flash::flash_fwd_kernel", Kind.ATTENTION),
        ("aten::native_batch_norm_backward", Kind.NORMALISATION),
        ("cudnn::bn_fw_tr_1C11_kernel_NCHW", Kind.NORMALISATION),
        ("aten::mul_", Kind.ELEMENTWISE),
        ("aten::clamp_min", Kind.ELEMENTWISE),
        ("aten::_log_softmax", Kind.ELEMENTWISE),
        ("void at::native::vectorized_elementwise_kernel<4>", Kind.ELEMENTWISE),
        ("aten::copy_", Kind.COPY),
        ("Memcpy HtoD (Pinned -> Device)", Kind.COPY),
        ("Optimizer.step#AdamW.step", Kind.OPTIMIZER),
        ("aten::_fused_adamw_", Kind.OPTIMIZER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", Kind.COMMUNICATION),
        ("aten::_local_scalar_dense", Kind.OTHER),
    ],
)
def test_work_is_told_by_its_name(name: str, kind: Kind) -> None:
    assert classify(name) is kind


def test_without_time_there_are_no_shares() -> None:
    assert by_kind([Work("aten::mm", 3, 0.0)]) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [(CommandKind.PROFILE, CommandKind.SNAPSHOT), (CommandKind.SNAPSHOT, CommandKind.PROFILE)],
)
def test_a_profile_and_a_snapshot_do_not_look_at_each_other(
    run: Run, first: CommandKind, second: CommandKind
) -> None:
    run.run(8)
    run.ask(kind=first)
    run.ask(kind=second)
    run.run(20)
    states = {ack.command_id.partition("-")[0]: ack.state for ack in run.journal.of(AckRow)}
    assert states == {first: CommandState.APPLIED, second: CommandState.REJECTED}
