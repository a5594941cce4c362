"""A person's own script on a GPU: the same numbers as without watch, steps timed by the device, settings
changed while it trains, and memory explained with the script's own line."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.analysis.oom.report import OomPhase, OomVerdict, report_from_json
from harness.records.profile import ProfileOpRow
from harness.records.run import CommandKind, CommandState, RunState
from tests.attach_factories import LAST, SCRIPTS, ran, ran_watched, recorded
from tests.backward_factories import BackwardUpdates
from tests.session_factories import Attached, a_session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

DEVICE = "cuda"
SCRIPT = SCRIPTS / "on_a_device.py"
STEPS = 60
MIB = 1 << 20
Record = Callable[[str, object], None]


# Of torch's compiler.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("options", [(), ("scaler",), ("accumulate",), ("compile",)], ids=" ".join)
def test_a_script_trains_as_without_watch_and_its_steps_are_timed_by_the_gpu(
    tmp_path: Path, options: tuple[str, ...], record_property: Record
) -> None:
    """The script prints its losses in full, and the peak that it reads itself."""
    bare = ran(SCRIPT, DEVICE, str(STEPS), *options)
    watched, folder = ran_watched(tmp_path, SCRIPT, DEVICE, str(STEPS), *options)
    assert (bare.error, watched.error, watched.stderr) == (None, None, bare.stderr)
    if "compile" in options:  # The first of the two compiles, which takes memory of its own.
        assert losses(watched.stdout) == losses(bare.stdout)
    else:
        assert watched.stdout == bare.stdout
    log = recorded(folder)
    assert log.run.state == RunState.FINISHED
    assert [row.step for row in log.steps] == list(range(1, STEPS + 1))
    timed = [row for row in log.steps if row.device_step_ns is not None]
    record_property("steps timed by the device", f"{len(timed)} of {STEPS}")
    assert len(timed) >= 0.9 * STEPS
    for row in timed:
        phases = (row.device_forward_ns, row.device_backward_ns, row.device_optimizer_ns)
        assert row.device_step_ns is not None
        assert sum(ns or 0 for ns in phases) <= 1.01 * row.device_step_ns
        assert all(phases)
    assert all(row.allocated_bytes and row.reserved_bytes for row in log.steps)
    # The counter of the peak is the script's: one that has not risen says nothing of a step.
    peaks = [row for row in log.steps if row.peak_allocated_bytes is not None]
    assert peaks
    for row in peaks:
        assert (row.allocated_bytes or 0) <= (row.peak_allocated_bytes or 0) <= (row.reserved_bytes or 0)


def test_a_script_that_updates_within_the_backward_pass_is_followed(tmp_path: Path) -> None:
    """Autograd's own thread for the GPU runs the hooks."""
    script = SCRIPTS / "update_in_backward.py"
    bare = ran(script, DEVICE)
    watched, folder = ran_watched(tmp_path, script, DEVICE)
    assert (bare.error, watched.error, watched.stderr) == (None, None, bare.stderr)
    assert watched.stdout == bare.stdout
    log = recorded(folder)
    assert [row.step for row in log.steps] == list(range(1, len(losses(bare.stdout)) + 1))
    assert all(row.optimizer_ns for row in log.steps)
    assert not [event.label for event in log.events if event.label == "second training thread"]


@pytest.mark.parametrize("kind", [CommandKind.PROFILE, CommandKind.SNAPSHOT])
def test_a_capture_of_updates_within_the_backward_pass_is_taken(tmp_path: Path, kind: CommandKind) -> None:
    with closing(BackwardUpdates(is_one=False, device=DEVICE)) as script, a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(kind)
        script.steps(20)
        assert attached.guard.is_on
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message


def losses(stdout: str) -> list[str]:
    return [line for line in stdout.splitlines() if line.startswith("loss")]


class Training:
    """A script's objects: a model, an optimizer, a loader, and memory that its flag asks for."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 8, (4096,)))
        self.loader = DataLoader(data, batch_size=32)
        self.kept: list[Tensor] = []
        self.kept_most = 1
        self.asked_bytes = 0

    def epoch(self, most_steps: int = 10**9) -> int:
        """Train one epoch, or so many steps of it; the samples seen."""
        samples = 0
        for step, (inputs, targets) in enumerate(self.loader):
            if step == most_steps:
                break
            inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
            self.optimizer.zero_grad()
            output = self.model(inputs)
            if self.asked_bytes:
                output = output + torch.empty(self.asked_bytes // 4, device=DEVICE)[0]  # TOO MUCH
            nn.functional.cross_entropy(output, targets).backward()
            self.kept.append(torch.zeros(MIB // 4, device=DEVICE))  # THE LEAK
            del self.kept[: -self.kept_most]
            self.optimizer.step()
            samples += len(inputs)
        return samples


def line_of(comment: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


def answered(home: Path, training: Training, **values: Any) -> Attached:
    """A request right before an epoch, in which every sample is seen once, as in the next."""
    with a_session(home) as attached:
        training.epoch()
        request = attached.ask(**values)
        assert training.epoch() == 4096
        assert training.epoch() == 4096
        assert attached.guard.is_on
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message
    return attached


@pytest.mark.parametrize(
    "change",
    [
        {"amp": "bf16"},
        {"batch_size": 128},
        {"pin_memory": True},
        {"matmul_precision": "high"},
        {"cudnn_benchmark": True},
        {"empty_cache_every": 5},
        {"memory_cap_gib": 4.0},
        {"learning_rate_factor": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_setting_changes_while_a_script_trains(tmp_path: Path, change: dict[str, Any]) -> None:
    precision = torch.get_float32_matmul_precision()
    try:
        attached = answered(tmp_path, Training(), **change)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = False
        torch.cuda.set_per_process_memory_fraction(1.0)
    name, value = next(iter(change.items()))
    assert attached.settings()[-1][name] == value


def test_fp16_needs_the_scripts_own_scaler(tmp_path: Path) -> None:
    training = Training()
    with a_session(tmp_path) as attached:
        training.epoch()
        request = attached.ask(amp="fp16")
        training.epoch()
    answer = attached.answer(request)
    assert (answer.state, "GradScaler" in answer.message) == (CommandState.REJECTED, True)


def test_memory_that_runs_out_is_explained_with_the_scripts_line(
    tmp_path: Path, record_property: Record
) -> None:
    training = Training()
    try:
        with suppress(torch.OutOfMemoryError), a_session(tmp_path) as attached:
            training.epoch()
            attached.ask(memory_cap_gib=1.0)
            training.epoch()
            training.asked_bytes = 2 << 30
            training.epoch()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    with attached.log() as log:
        assert log.run().state == RunState.OUT_OF_MEMORY
        (row,) = log.memory.oom_reports()
    report = report_from_json(row.report)
    record_property("the report's sentence", report.sentence)
    record_property("its counterfactuals", "; ".join(one.text for one in report.counterfactuals))
    request = report.facts.request
    assert (report.verdict, request.phase) == (OomVerdict.CAP, OomPhase.FORWARD)
    assert request.site is not None
    assert f"{Path(__file__).name}:{line_of('TOO MUCH')}" in request.site
    assert request.error_bytes == 2 << 30


def test_a_snapshot_names_the_line_that_keeps_tensors(tmp_path: Path) -> None:
    training = Training()
    training.kept_most = 1_000
    with a_session(tmp_path) as attached:
        training.epoch(20)
        request = attached.ask(CommandKind.SNAPSHOT, steps=4)
        training.epoch(30)
        assert not torch._C._cuda_isHistoryEnabled()
    assert attached.answer(request).state == CommandState.APPLIED, attached.answer(request).message
    with attached.log() as log:
        snapshot = log.memory.snapshots()[-1]
        rows = log.memory.allocations(snapshot.snapshot_id)
    site = f"{Path(__file__).name}:{line_of('THE LEAK')}"
    assert any(site in row.site for row in rows), [row.site for row in rows]


def test_a_profile_of_a_script_has_kernels(tmp_path: Path, record_property: Record) -> None:
    training = Training()
    with a_session(tmp_path) as attached:
        training.epoch(40)
        request = attached.ask(CommandKind.PROFILE)
        training.epoch(60)
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message
    with attached.log() as log:
        (profile,) = log.profiles.all()
        operators: list[ProfileOpRow] = log.profiles.operators(profile.profile_id)
        steps = log.steps(1, LAST)
    kernels = [one.name for one in operators if one.is_kernel]
    record_property("kernels", len(kernels))
    assert profile.on_device
    assert kernels
    assert len(steps) == 100


@pytest.mark.alone
def test_what_watching_a_script_adds_to_a_step(record_property: Record) -> None:
    """A step of some small kernels, which the CPU's launches set the pace of: bare and watched in turns."""
    times: dict[str, list[float]] = {"bare": [], "watched": []}
    for _ in range(3):
        for name, disabled in (("bare", "1"), ("watched", "0")):
            command = [sys.executable, "-m", "harness", "run", str(SCRIPT), DEVICE, "1500", "timed"]
            environ = os.environ | {"STEPSCOPE_DISABLED": disabled}
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environ, timeout=60
            )
            assert done.returncode == 0, done.stderr[-600:]
            times[name].append(float(done.stdout.split("median step ")[1].split()[0]))
    bare_us, watched_us = (statistics.median(times[name]) for name in ("bare", "watched"))
    record_property("median step, bare", f"{bare_us:.0f} µs ({times['bare']})")
    record_property("median step, watched", f"{watched_us:.0f} µs ({times['watched']})")
    assert watched_us < bare_us + 300
