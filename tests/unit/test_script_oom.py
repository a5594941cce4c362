"""Memory that runs out in a script: the report names its own line and module."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.analysis.oom.report import OomPhase, OomReport, report_from_json, to_json
from harness.analysis.oom.text import render
from harness.attach.launch import exit_code
from harness.device.cpu.heap import HeapMeter
from harness.records.run import EventKind, RunState, Severity
from harness.store.reader import LogReader
from tests.attach_factories import SCRIPTS, ran, ran_watched
from tests.memory_hogs import TOO_MUCH, Hungry
from tests.session_factories import a_session


class Block(nn.Module):
    """Runs out of memory in the pass that its flag names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.fails_in = ""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.fails_in == "forward":
            torch.empty(TOO_MUCH)
        hidden: Tensor = self.linear(inputs)
        if self.fails_in == "backward":
            hidden.register_hook(lambda _gradient: torch.empty(TOO_MUCH))
        return hidden


class Net(nn.Module):
    """Blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.blocks(inputs)
        return hidden


def report_of(home: Path, fail: Callable[[Net, torch.optim.Optimizer], None]) -> tuple[OomReport, RunState]:
    """The report of a script that fails after four steps."""
    with suppress(RuntimeError), a_session(home) as attached:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (inputs,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8):
            net(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        fail(net, optimizer)
    with attached.log() as log:
        (row,) = log.memory.oom_reports()
        return report_from_json(row.report), RunState(log.run().state)


def fail_forward(net: Net, optimizer: torch.optim.Optimizer) -> None:
    net.blocks[1].fails_in = "forward"  # type: ignore[assignment]
    net(torch.ones(8, 4)).sum().backward()
    optimizer.step()


def fail_backward(net: Net, optimizer: torch.optim.Optimizer) -> None:
    net.blocks[1].fails_in = "backward"  # type: ignore[assignment]
    net(torch.ones(8, 4)).sum().backward()
    optimizer.step()


def fail_between(_net: Net, _optimizer: torch.optim.Optimizer) -> None:
    torch.empty(TOO_MUCH)


def test_a_forward_pass_is_reported_with_the_scripts_line_and_module(tmp_path: Path) -> None:
    report, state = report_of(tmp_path, fail_forward)
    request = report.facts.request
    assert state == RunState.OUT_OF_MEMORY
    assert (request.phase, request.module, request.module_kind) == (OomPhase.FORWARD, "blocks.1", "Block")
    assert request.site is not None
    assert "test_script_oom.py" in request.site
    assert request.code == "torch.empty(TOO_MUCH)"
    assert not any("attach/" in frame for frame in request.stack)
    assert report.facts.step == 5


def fail_forward_and_wrap(net: Net, optimizer: torch.optim.Optimizer) -> None:
    try:
        fail_forward(net, optimizer)
    except RuntimeError as error:
        raise RuntimeError("batch 5 failed") from error


def test_an_error_that_the_script_raises_from_one_of_memory_is_reported_as_that_one(tmp_path: Path) -> None:
    report, state = report_of(tmp_path, fail_forward_and_wrap)
    request = report.facts.request
    assert (state, request.phase, request.module) == (RunState.OUT_OF_MEMORY, OomPhase.FORWARD, "blocks.1")
    assert request.code == "torch.empty(TOO_MUCH)"


def fail_forward_of_another_model(_net: Net, _optimizer: torch.optim.Optimizer) -> None:
    other = Net()
    other.blocks[1].fails_in = "forward"  # type: ignore[assignment]
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(8, 4)).sum().backward()
    optimizer.step()


def test_a_forward_pass_of_a_further_training_is_reported_as_that_of_the_first(tmp_path: Path) -> None:
    report, _ = report_of(tmp_path, fail_forward_of_another_model)
    request = report.facts.request
    assert (request.phase, request.module, request.module_kind) == (
        OomPhase.FORWARD,
        "Net_2.blocks.1",
        "Block",
    )


@pytest.mark.parametrize("updates", [0, 1])
def test_the_first_update_of_a_further_optimizer_allocates_its_state(tmp_path: Path, updates: int) -> None:
    def fail(net: Net, _optimizer: torch.optim.Optimizer) -> None:
        hungry = Hungry(net.parameters(), lr=0.1)
        for _ in range(updates):
            net(torch.ones(8, 4)).sum().backward()
            torch.optim.SGD.step(hungry)
        net(torch.ones(8, 4)).sum().backward()
        hungry.step()

    report, _ = report_of(tmp_path, fail)
    assert report.facts.request.phase is OomPhase.OPTIMIZER
    assert report.facts.is_first_update is (updates == 0)


def test_only_settings_that_the_script_has_are_in_the_report(tmp_path: Path) -> None:
    report, _ = report_of(tmp_path, fail_forward)
    assert report.facts.settings_text == "batch 8, AMP off"


def test_a_backward_pass_is_reported_as_such(tmp_path: Path) -> None:
    report, _ = report_of(tmp_path, fail_backward)
    assert report.facts.request.phase is OomPhase.BACKWARD


def test_the_batch_size_is_that_of_the_loader_that_fed_the_step(tmp_path: Path) -> None:
    def fail(net: Net, optimizer: torch.optim.Optimizer) -> None:
        (inputs,) = next(iter(DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=32)))
        net.blocks[1].fails_in = "forward"  # type: ignore[assignment]
        net(inputs).sum().backward()
        optimizer.step()

    report, _ = report_of(tmp_path, fail)
    assert (report.facts.step, report.facts.batch_size) == (5, 32)
    assert report.facts.change is not None
    assert report.facts.change.step == 5


def test_the_batch_size_is_not_that_of_a_loader_for_evaluation(tmp_path: Path) -> None:
    def fail(net: Net, _optimizer: torch.optim.Optimizer) -> None:
        net.eval()
        net.blocks[1].fails_in = "forward"  # type: ignore[assignment]
        for (inputs,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=32):
            net(inputs)

    report, _ = report_of(tmp_path, fail)
    assert (report.facts.request.phase, report.facts.batch_size) == (OomPhase.EVALUATION, 8)


def test_what_fails_outside_of_a_phase_is_between_two_steps(tmp_path: Path) -> None:
    report, _ = report_of(tmp_path, fail_between)
    assert report.facts.request.phase is OomPhase.BETWEEN
    assert report.facts.request.code == "torch.empty(TOO_MUCH)"


@pytest.mark.parametrize("steps", [4, 100])
def test_a_batch_that_cannot_be_put_together_fails_in_data_loading(tmp_path: Path, steps: int) -> None:
    def collate(samples: list[int]) -> Tensor:
        return torch.ones(TOO_MUCH) if 8 * steps in samples else torch.ones(8, 4)

    with suppress(RuntimeError), a_session(tmp_path) as attached:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        numbers: Any = list(range(2_000))
        for inputs in DataLoader(numbers, batch_size=8, collate_fn=collate):
            net(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with attached.log() as log:
        (row,) = log.memory.oom_reports()
    report = report_from_json(row.report)
    assert (report.facts.step, report.facts.request.phase) == (steps + 1, OomPhase.DATA)


@pytest.mark.slow
@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_the_peak_of_a_step_is_that_of_the_attempt_that_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    meters: list[HeapMeter] = []
    begin = HeapMeter.begin

    def begin_noted(meter: HeapMeter) -> None:
        meters.append(meter)
        begin(meter)

    monkeypatch.setattr(HeapMeter, "begin", begin_noted)

    def fail(_gradient: Tensor | None = None) -> None:
        for meter in meters:  # As another thread does during a long pass.
            meter.sample()
        torch.empty(TOO_MUCH)

    class Layer(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if len(inputs) > 8 and fails_in == "forward":
                fail()
            hidden = super().forward(inputs)
            if len(inputs) > 8:
                hidden.register_hook(fail)
            return hidden

    with a_session(tmp_path) as attached:
        layer = Layer(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(8):
            with suppress(RuntimeError):
                layer(torch.ones(1 << 22 if step in (4, 6) else 8, 4)).sum().backward()
                optimizer.step()
    with attached.log() as log:
        rows, events = log.last_steps(10), [event for _, event in log.events()]
    assert [row.step for row in rows] == list(range(1, 7))
    (warning,) = [event for event in events if event.label == "out of memory, caught"]
    assert (warning.kind, warning.severity) == (EventKind.WARNING, Severity.WARNING)
    assert warning.message.startswith(
        f"Memory ran out in the {fails_in} pass of step 5; the script caught the error and went on. The "
        "request was for "
    )
    lowest = min(row.allocated_bytes or 0 for row in rows)
    assert all((row.peak_allocated_bytes or 0) - lowest < 1 << 25 for row in rows)


def test_the_traceback_is_left_to_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_of(tmp_path, fail_forward)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", [0, 8])
def test_a_script_that_runs_out_of_memory_prints_what_it_prints_without_a_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    script = SCRIPTS / "out_of_memory.py"
    watched, folder = ran_watched(tmp_path, script, str(steps))
    assert exit_code(watched.error) == 1
    printed = capsys.readouterr().err
    bare = ran(script, str(steps))
    assert exit_code(bare.error) == 1
    assert capsys.readouterr().err == printed
    assert printed.count("Traceback") == 1
    assert watched.stderr == bare.stderr == ""
    with LogReader(folder.log) as log:
        (row,) = log.memory.oom_reports()
        facts = report_from_json(row.report).facts
    assert (facts.step, facts.request.phase, facts.request.module) == (steps + 1, OomPhase.FORWARD, "1")
    assert facts.request.site is not None
    assert facts.request.site.endswith("out_of_memory.py:20 forward")


def test_the_report_names_the_scripts_variables_that_hold_the_most(tmp_path: Path) -> None:
    def fail(net: Net, optimizer: torch.optim.Optimizer) -> None:
        kept = {"outputs": [torch.ones(1000, 1000) for _ in range(5)]}
        view = kept["outputs"][0][:10]
        net.blocks[0].history = [torch.ones(1000, 500)]  # type: ignore[assignment]
        fail_forward(net, optimizer)
        del view

    report, _ = report_of(tmp_path, fail)
    largest, second, *rest = report.facts.variables
    assert (largest.name, largest.held_bytes, largest.blocks) == ("kept", 20_000_000, 5)
    assert "test_script_oom.py" in largest.site
    assert largest.site.endswith(" fail")
    assert (second.name, second.held_bytes) == ("net.blocks.0.history", 2_000_000)
    assert "view" not in {one.name for one in rest}
    assert f"19.1 MiB  kept in {largest.site}, 5 objects" in render(report)
    assert report_from_json(to_json(report)) == report
