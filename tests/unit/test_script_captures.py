"""Snapshots, leak hunts and profiles of a script: what its own code does between torch's calls counts too."""

import gc
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    is_in_torch_dispatch_mode,
)
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from harness.records.memory import SnapshotReason
from harness.records.run import CommandKind, CommandRow, CommandState
from harness.watch.capture.hunting import SOURCE as HUNTER
from harness.watch.compiler import has_compiled
from tests.session_factories import a_session


class Net(nn.Module):
    """A model of its own class, which torch.compile compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.body(inputs))
        return output


class Script:
    """A model, and a list that keeps a tensor per step."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.kept: list[Tensor] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 8)).square().mean().backward()
            self.kept.append(torch.zeros(8_000))  # THE LEAK
            self.optimizer.step()

    def compile_update(self) -> None:
        """As torchao's optimizers have it, in one graph or none."""
        update = torch.compile(torch.relu, backend="eager", fullgraph=True)

        def updated(*_arguments: object) -> None:
            update(torch.ones(2))

        self.optimizer.register_step_post_hook(updated)


def line_of(comment: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


def test_a_snapshot_names_the_line_of_a_script_that_keeps_tensors(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.SNAPSHOT, steps=4)
        script.steps(12)
        assert _get_current_dispatch_mode() is None
        assert attached.guard.is_on
    assert attached.answer(request).state == CommandState.APPLIED
    with attached.log() as log:
        snapshot = log.memory.snapshots()[-1]
        rows = log.memory.allocations(snapshot.snapshot_id)
    site = f"test_script_captures.py:{line_of('THE LEAK')} steps"
    assert snapshot.reason == SnapshotReason.REQUESTED
    assert any(row.site.endswith(site) for row in rows)


class Doubling(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        del types
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_own_stays_on_when_tracking_ends_within_it(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        attached.ask(CommandKind.SNAPSHOT, steps=4)
        script.steps(6)
        with Doubling() as mode:  # type: ignore[no-untyped-call]
            script.steps(10)
            assert _get_current_dispatch_mode() is mode
        assert _get_current_dispatch_mode() is None
        assert not is_in_torch_dispatch_mode()
        assert attached.guard.is_on


@pytest.mark.parametrize("kind", [CommandKind.SNAPSHOT, CommandKind.PROFILE])
def test_steps_within_a_mode_of_the_scripts_own_are_captured(tmp_path: Path, kind: CommandKind) -> None:
    """Each step begins and ends within one, which is off between two steps of the loop."""
    script = Script()
    counted = []
    with a_session(tmp_path) as attached:
        for step in range(20):
            if step == 8:
                request = attached.ask(kind)
            with FlopCounterMode(display=False) as flops, Doubling() as mode:  # type: ignore[no-untyped-call]
                script.steps(1)
                assert _get_current_dispatch_mode() is mode
            counted.append(flops.get_total_flops())
        assert _get_current_dispatch_mode() is None
        assert not is_in_torch_dispatch_mode()
        assert attached.guard.is_on
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message
    assert len(set(counted)) == 1
    assert counted[0] > 0
    if kind is CommandKind.SNAPSHOT:
        with attached.log() as log:
            rows = log.memory.allocations(log.memory.snapshots()[-1].snapshot_id)
        site = f"test_script_captures.py:{line_of('THE LEAK')} steps"
        assert any(row.site.endswith(site) for row in rows)
    else:
        with attached.log() as log:
            (profile,) = log.profiles.all()
            operators = log.profiles.operators(profile.profile_id)
        assert profile.busy_ns is not None
        # Seen on a busy machine: a sum of 1.1 and 1.3 times as much.
        assert 0.98 < sum(row.self_cpu_ns for row in operators) / profile.busy_ns < 2


@pytest.mark.slow
def test_a_compiled_model_has_no_snapshot_on_the_cpu(tmp_path: Path) -> None:
    script = Script()
    script.model.compile(backend="eager")
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.SNAPSHOT, steps=4)
        script.steps(2)
    answer = attached.answer(request)
    assert (answer.state, "compiled code" in answer.message) == (CommandState.REJECTED, True)


@pytest.mark.parametrize("is_early", [True, False], ids=["before the watch", "under watch"])
def test_a_script_with_a_compiled_function_has_no_snapshot_on_the_cpu(tmp_path: Path, is_early: bool) -> None:
    script = Script()
    if is_early:
        script.compile_update()
    with a_session(tmp_path) as attached:
        if not is_early:
            script.compile_update()
        script.steps(8)
        requests = [attached.ask(CommandKind.SNAPSHOT), attached.ask(memory_history=True)]
        attached.session.inbox.put(CommandRow("hunt-1", 0, CommandKind.SNAPSHOT, "{}", HUNTER))
        script.steps(12)
        assert attached.guard.is_on
    answers = [attached.answer(request) for request in requests]
    assert [answer.state for answer in answers] == [CommandState.REJECTED, CommandState.APPLIED]
    assert "torch.compile was called in this process" in answers[0].message
    with attached.log() as log:
        assert [row.reason for row in log.memory.snapshots()] == [SnapshotReason.START]


def test_a_snapshot_makes_way_for_a_function_that_is_compiled_meanwhile(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.SNAPSHOT, steps=8)
        script.steps(6)
        assert _get_current_dispatch_mode() is not None
        script.compile_update()
        script.steps(6)
        assert attached.guard.is_on
    answer = attached.answer(request)
    assert (answer.state, "torch.compile" in answer.message) == (CommandState.REJECTED, True)


def test_a_function_that_torch_leaves_alone_is_no_compiled_one() -> None:
    torch.compiler.disable(torch.relu)
    assert not has_compiled()
    torch.compile(torch.relu, backend="eager")
    assert has_compiled()


def test_a_profile_is_taken_at_a_step(tmp_path: Path) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.PROFILE)
        script.steps(14)
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message
    with attached.log() as log:
        assert len(log.profiles.all()) == 1


@pytest.mark.parametrize("kind", [CommandKind.SNAPSHOT, CommandKind.PROFILE])
def test_a_capture_writes_nothing_of_torchs_and_keeps_no_loader_alive(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: CommandKind
) -> None:
    script = Script()
    loaders = []
    data: Any = torch.ones(40, 8)
    with a_session(tmp_path) as attached:
        for epoch in range(4):
            loader: DataLoader[Any] = DataLoader(data, batch_size=4)
            loaders.append(ref(loader))
            for at, batch in enumerate(loader):
                if (epoch, at) == (1, 2):
                    request = attached.ask(kind, steps=3)
                script.optimizer.zero_grad()
                script.model(batch).square().mean().backward()
                script.optimizer.step()
        del loader
        gc.collect()
        assert [one() for one in loaders] == [None] * 4
    assert attached.answer(request).state == CommandState.APPLIED
    assert "Warning" not in capfd.readouterr().err
