"""Profiles of a live run: what they answer, what they leave behind, and the kinds of work they tell."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.profiles import by_kind
from harness.profiling.nesting import sum_events
from harness.profiling.options import ProfileOptions
from harness.profiling.ranges import Ranges
from harness.profiling.rows import NO_LINES
from harness.profiling.window import ProfilerWindow
from harness.records.profile import (
    OperatorKind,
    ProfileModuleRow,
    ProfileOpRow,
    ProfileReason,
    ProfileRow,
    ProfileStackRow,
)
from harness.records.run import (
    AckRow,
    CommandKind,
    CommandState,
    DeviceFacts,
    DeviceKind,
    EventKind,
    EventRow,
    StepFlag,
)
from harness.watch.boundary import TRANSITION_STEPS, WARM_UP_STEPS
from tests.train_factories import CPU_FACTS, SteppedRun, a_command, a_device, a_step

pytestmark = pytest.mark.slow


def is_on() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


class Run(SteppedRun):
    """A run that knows in which of its steps the profiler was on."""

    def __init__(self, captures: Path, facts: DeviceFacts = CPU_FACTS, **values: Any) -> None:
        super().__init__(captures, a_device(facts), **values)
        self.profiled_in: list[bool] = []

    def step_begins(self) -> None:
        self.profiled_in.append(is_on())

    def request(self, payload: str = "{}", kind: CommandKind = CommandKind.PROFILE) -> None:
        self.inbox.put(a_command(kind, payload, f"{kind}-{len(self.inbox.commands)}"))

    @property
    def answer(self) -> AckRow:
        (outcome,) = self.journal.of(AckRow)
        assert isinstance(outcome, AckRow)
        return outcome

    @property
    def event(self) -> EventRow:
        (outcome,) = [row for row in self.journal.of(EventRow) if row.kind == EventKind.PROFILE]
        assert isinstance(outcome, EventRow)
        return outcome


@pytest.fixture
def run(tmp_path: Path) -> Any:
    outcome = Run(tmp_path / "captures")
    yield outcome
    outcome.close()


def taken(run: Run, payload: str = "{}", before: int = 8) -> ProfileRow:
    """Ask after `before` steps and take as many as it needs."""
    run.run(before)
    run.request(payload)
    run.run(12)
    (outcome,) = run.journal.of(ProfileRow)
    assert isinstance(outcome, ProfileRow)
    assert outcome.steps, outcome.message
    return outcome


def test_a_profile_tells_the_work_of_the_steps_that_follow(run: Run, tmp_path: Path) -> None:
    row = taken(run, '{"steps": 2}')
    operators, modules = run.journal.of(ProfileOpRow), run.journal.of(ProfileModuleRow)
    assert run.answer.state == CommandState.APPLIED
    assert row.message in run.answer.message
    assert (row.first_step, row.steps, row.reason, row.on_device) == (13, 2, ProfileReason.REQUESTED, 0)
    assert [step for step, flags in run.flags.items() if flags & StepFlag.PROFILED] == [12, 13, 14]
    after = [step for step, flags in run.flags.items() if flags & StepFlag.TRANSITION]
    assert after == list(range(15, 15 + TRANSITION_STEPS))
    assert [op.rank for op in operators] == list(range(1, len(operators) + 1))
    assert {op.kind for op in operators} > {OperatorKind.MATMUL, OperatorKind.OPTIMIZER}
    parts = by_kind(operators, row)
    assert sum(part.time_ns for part in parts) == pytest.approx(row.wall_ns)
    observed = sum(op.self_cpu_ns for op in operators)
    assert sum(module.self_cpu_ns for module in modules) == observed
    assert observed == pytest.approx(row.busy_ns)
    assert row.took_ns is not None
    assert row.slowdown is not None
    assert json.loads(run.event.detail)["profile_id"] == row.profile_id == 1
    path = tmp_path / "captures" / (row.file or "")
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == row.file_bytes
    assert [file.name for file in path.parent.iterdir()] == ["profile-1.json.gz"]


def test_the_row_of_a_profile_comes_after_what_it_consists_of(run: Run) -> None:
    taken(run)
    kinds = [type(row) for row in run.journal.rows]
    assert max(kinds.index(ProfileOpRow), kinds.index(ProfileModuleRow)) < kinds.index(ProfileRow)
    assert kinds[-3:] == [ProfileRow, EventRow, AckRow]


def test_time_goes_to_the_modules_and_phases_in_which_it_is_spent(run: Run) -> None:
    taken(run)
    modules = {(row.module, row.phase): row for row in run.journal.of(ProfileModuleRow)}
    names = {path: type(module).__name__ for path, module in run.workload.model.named_modules()}
    linear = [path for path, name in names.items() if name == "Linear"]
    assert linear
    for path in linear:
        for phase in ("forward", "backward"):
            row = modules[path, phase]
            assert row.self_cpu_ns > 0
            assert (row.calls, row.class_name) == (3, "Linear")
    assert modules["<optimizer>", "optimizer"].self_cpu_ns > 0
    whole = modules["", "forward"]
    below = [row for (path, phase), row in modules.items() if path and path[0] != "<" and phase == "forward"]
    assert whole.total_cpu_ns == whole.self_cpu_ns + sum(row.self_cpu_ns for row in below)


def test_checkpointed_work_that_is_done_again_counts_into_the_backward_pass(tmp_path: Path) -> None:
    times = {}
    for checkpointing in (False, True):
        values: dict[str, Any] = {
            "model": "transformer",
            "data": "stdlib-text",
            "sequence_length": 16,
            "batch_size": 2,
        }
        run = Run(tmp_path / str(checkpointing), **values, activation_checkpointing=checkpointing)
        taken(run, '{"steps": 1}')
        run.workload.close()
        operators = {(row.name, row.kind): row.calls for row in run.journal.of(ProfileOpRow)}
        rows = {(row.module, row.phase): row for row in run.journal.of(ProfileModuleRow)}
        times[checkpointing] = operators["aten::addmm", OperatorKind.MATMUL]
        assert rows["blocks.0.feed_forward.widen", "backward"].calls == 1
        assert rows["blocks.0.feed_forward.widen", "forward"].calls == 1
        assert rows["", "backward"].total_cpu_ns > rows["", "backward"].self_cpu_ns
        assert {phase for path, phase in rows if path.startswith("blocks")} == {"forward", "backward"}
    assert times[True] == 2 * times[False]


def test_nothing_of_a_profile_is_left_behind(run: Run) -> None:
    called = {name: getattr(run.workload, name) for name in ("forward", "backward", "update", "next_batch")}
    taken(run)
    assert called == {name: getattr(run.workload, name) for name in called}
    assert not is_on()
    assert not run.profiles.is_busy
    assert not any(run.profiled_in[:12])
    assert all(run.profiled_in[12:15])
    assert not any(run.profiled_in[15:])
    assert not torch.nn.modules.module._global_forward_hooks


def test_memory_and_stacks_are_recorded_when_they_are_asked_for(run: Run) -> None:
    row = taken(run, '{"steps": 1, "memory": true, "stacks": true}')
    assert (row.with_memory, row.with_stacks) == (1, 1)
    assert any((op.self_bytes or 0) > 0 for op in run.journal.of(ProfileOpRow))
    stacks = run.journal.of(ProfileStackRow)
    if NO_LINES not in row.left_out:
        assert any(re.search(r"models/mlp.py:\d+ forward\naten::", stack.stack) for stack in stacks)
    assert any("AddmmBackward0\naten::mm" in stack.stack for stack in stacks)
    assert not any("harness/profiling" in stack.stack for stack in stacks)


def test_neither_is_recorded_otherwise(run: Run) -> None:
    taken(run)
    assert {op.self_bytes for op in run.journal.of(ProfileOpRow)} == {None}
    assert run.journal.of(ProfileStackRow) == []


def test_a_second_profile_has_a_profiler_and_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    run.run(6)
    for _ in range(2):
        run.request('{"steps": 1}')
        run.run(12)
    states = [row.state for row in run.journal.of(AckRow)]
    assert states == [CommandState.APPLIED, CommandState.APPLIED]
    files = sorted(file.name for file in (tmp_path / "captures").iterdir())
    assert files == ["profile-1.json.gz", "profile-2.json.gz"]
    assert [row.profile_id for row in run.journal.of(ProfileRow)] == [1, 2]


def test_a_profile_waits_until_the_run_has_settled(run: Run) -> None:
    run.request('{"steps": 1}')
    run.run(13)
    (row,) = run.journal.of(ProfileRow)
    assert row.first_step == WARM_UP_STEPS + 3 + 1 + 1


def test_the_settings_can_name_the_steps_at_which_profiles_are_taken(tmp_path: Path) -> None:
    run = Run(tmp_path, profile_at="8,20")
    run.run(40)
    run.workload.close()
    rows = run.journal.of(ProfileRow)
    assert [row.first_step for row in rows] == [12, 24]
    assert {(row.reason, row.steps) for row in rows} == {(ProfileReason.SCHEDULE, 3)}
    assert run.journal.of(AckRow) == []


def test_the_steps_to_profile_at_can_change_while_the_run_goes_on(run: Run) -> None:
    run.run(8)
    run.request('{"profile_at": "10,16"}', CommandKind.SET)
    run.run(20)
    assert [row.reason for row in run.journal.of(ProfileRow)] == ["schedule"]
    assert run.journal.of(ProfileRow)[0].first_step > 13


def test_past_steps_to_profile_at_are_refused(run: Run) -> None:
    run.run(8)
    run.request('{"profile_at": "2,5"}', CommandKind.SET)
    run.run(1)
    assert run.answer.state == CommandState.REJECTED
    assert "profile_at '2,5' has only past steps: the next is" in run.answer.message
    assert run.workload.settings.profile_at is None


@pytest.mark.parametrize(
    "payload",
    ['{"steps": 0}', '{"steps": 21}', '{"steps": "3"}', "[", "[]", '{"memory": 1}', '{"stacks": "on"}'],
)
def test_what_cannot_be_taken_is_refused(run: Run, payload: str) -> None:
    run.request(payload)
    run.run(2)
    assert run.answer.state == CommandState.REJECTED
    assert not run.profiles.is_busy
    assert run.journal.of(ProfileRow) == []


def unavailable(run: Run) -> str:
    """Return why the one profile could not be taken."""
    (row,) = run.journal.of(ProfileRow)
    assert isinstance(row, ProfileRow)
    assert (row.steps, row.wall_ns, row.file) == (0, None, None)
    assert run.answer.state == CommandState.REJECTED
    assert run.answer.message == row.message == run.event.message
    assert row.message.startswith("The profile is unavailable, because ")
    return row.message


def test_where_a_profiler_is_at_work_already_it_is_unavailable_and_training_goes_on(run: Run) -> None:
    run.run(8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        run.request()
        run.run(5)
    assert "another profiler is active" in unavailable(run)
    assert run.step == 13


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_gpu_of_which_nothing_was_recorded_makes_it_unavailable(tmp_path: Path) -> None:
    run = Run(tmp_path, facts=CPU_FACTS._replace(kind=DeviceKind.CUDA))
    run.run(8)
    run.request()
    run.run(10)
    run.workload.close()
    assert "CUPTI" in unavailable(run)
    assert run.step == 18


def test_a_run_that_ends_within_gives_the_profile_up(run: Run) -> None:
    run.run(8)
    run.request('{"steps": 20}')
    run.run(7)
    for _ in range(2):
        run.profiles.abort(run.step, "The run ended before it was taken.")
    assert run.answer.state == CommandState.EXPIRED
    assert not is_on()


def test_a_step_that_fails_ends_the_profile(run: Run) -> None:
    run.run(8)
    run.request('{"steps": 5}')
    run.run(5)
    run.step -= 1  # What recovery does: the same step again.
    run.run(1)
    assert "a step failed" in unavailable(run)
    assert not is_on()


def pause(run: Run) -> None:
    """Let time pass between two steps, as a pause does."""
    run.steps.boundary.pauses += 1


def test_a_pause_ends_the_profile(run: Run) -> None:
    run.run(8)
    run.request('{"steps": 5}')
    run.run(5)
    pause(run)
    run.run(1)
    assert "the run was paused" in unavailable(run)
    assert not is_on()
    pause(run)
    run.run(2)


def test_a_change_of_settings_ends_the_profile(run: Run) -> None:
    run.run(8)
    run.request('{"steps": 5}')
    run.run(5)
    run.request('{"learning_rate": 0.01}', CommandKind.SET)
    run.run(1)
    (row,) = run.journal.of(ProfileRow)
    assert "settings changed" in row.message
    assert not is_on()


def test_a_compiled_model_is_profiled_as_a_whole(run: Run) -> None:
    ranges = Ranges(run.workload, is_compiled=True)
    ranges.start()
    assert not torch.nn.modules.module._global_forward_hooks
    window = ProfilerWindow(ProfileOptions(1), Path("unused"), DeviceKind.CPU, most_bytes=0)
    window.start()
    for _ in range(2):
        a_step(run.workload)
        window.end_step()
    ranges.stop()
    window.stop()
    assert window.result is not None
    sums = sum_events(window.result.events, is_on_device=False)
    assert {module for module, phase in sums.modules if phase == "forward"} == {""}
    assert sums.modules["", "backward"].self_cpu_ns > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [(CommandKind.PROFILE, CommandKind.SNAPSHOT), (CommandKind.SNAPSHOT, CommandKind.PROFILE)],
)
def test_a_profile_and_a_snapshot_do_not_look_at_each_other(
    run: Run, first: CommandKind, second: CommandKind
) -> None:
    run.run(8)
    run.request(kind=first)
    run.request(kind=second)
    run.run(24)
    states = {ack.command_id.partition("-")[0]: ack.state for ack in run.journal.of(AckRow)}
    assert states == {first: CommandState.APPLIED, second: CommandState.REJECTED}
