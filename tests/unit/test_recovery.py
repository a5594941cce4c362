"""Recovery from running out of memory within a step: what is let go of, what is changed, when it ends."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.analysis.oom.report import OomPhase, report_from_json
from harness.device.fakes import FAKE_FACTS, FakeDevice
from harness.memory_records import OomReportRow
from harness.records import CommandState, EventKind, Severity, StepFlag
from harness.store.folder import RunFolder
from harness.train.control import Controller
from harness.train.inbox import Inbox
from harness.train.journal import Marks
from harness.train.loop import train
from harness.train.memory import MemoryWatch
from harness.train.oom import NoRecoveryError
from harness.train.oom_reporter import OomReporter
from harness.train.readback import LossReader
from harness.train.recovery import LEVEL_BYTES, Levels, Recovery, phase_after
from harness.train.timing import StepTimer
from tests.train_factories import Clock, FakeJournal, a_command, a_device, a_workload, raising

pytestmark = pytest.mark.slow

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB."
LIMIT = 60


class Journal(FakeJournal):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[OomReportRow] = []
        self.durable: list[Any] = []

    def put(self, row: Any) -> None:
        if isinstance(row, OomReportRow):
            self.reports.append(row)
        else:
            super().put(row)

    def put_durable(self, row: Any) -> bool:
        self.durable.append(row)
        self.put(row)
        return True

    def flush(self, timeout_s: float) -> bool:
        return True


class Listener:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.flags: list[int] = []

    def step_ended(self, step: int, *_: Any) -> None:
        self.steps.append(step)


class Budget(TorchDispatchMode):
    """Lets so many bytes be made by operators while entered, then raises as CUDA's allocator does."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.left_bytes = budget_bytes

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.left_bytes -= result.nbytes
            if self.left_bytes < 0:
                raise torch.OutOfMemoryError(TEXT)
        return result


class Bench:
    """A loop with a recovery; `acts` are called right before the step whose number they stand under, `asked`
    before commands are carried out."""

    def __init__(self, tmp_path: Path, device: FakeDevice | None = None, **values: Any) -> None:
        self.device = device or a_device()
        self.workload = a_workload(self.device, max_steps=LIMIT, **values)
        self.journal, self.inbox, self.marks = Journal(), Inbox(), Marks()
        clock = Clock(tick_ns=1)
        self.memory = memory = MemoryWatch(self.device)
        timer = StepTimer(clock)
        self.controller = Controller(
            self.workload, self.device, self.journal, self.inbox, self.marks, timer, memory, clock
        )
        reporter = OomReporter(self.journal, self.device, RunFolder(tmp_path), self.workload.settings, clock)
        reporter.workload = self.workload
        reporter.level_bytes = lambda: memory.level_bytes
        self.recovery = Recovery(
            self.workload, self.device, self.controller, timer, memory, reporter, self.journal, clock
        )
        self.timer, self.listener = timer, Listener()
        self.asked: dict[int, list[Callable[[], Any]]] = {}
        self.acts: dict[int, list[Callable[[], Any]]] = {}

    def proceed(self, step: int) -> bool:
        for ask in self.asked.pop(step, ()):
            ask()
        if not self.controller.proceed(step):
            return False
        for act in self.acts.pop(step, ()):
            act()
        self.listener.flags.append(self.marks.flags)
        return True

    def train(self) -> int:
        return train(self.workload, self, self.timer, LossReader(None), self.listener, self.recovery)

    def ask(self, step: int, command_id: str = "c1", **values: Any) -> None:
        """Have settings changed before `step`."""
        command = a_command(payload=json.dumps(values), command_id=command_id)
        self.asked.setdefault(step, []).append(lambda: self.inbox.put(command))

    def fail_above(self, batch_size: int) -> None:
        """Let batches larger than this run out of memory."""
        inner = self.workload.model.forward

        def forward(inputs: Tensor, targets: Tensor) -> Any:
            loss = inner(inputs, targets)
            if len(inputs) > batch_size:
                raise torch.OutOfMemoryError(TEXT)
            return loss

        self.workload.model.forward = forward

    def events(self, kind: EventKind) -> list[Any]:
        return [event for event in self.journal.events if event.kind == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def in_a_step(bench: Bench, step: int, failing: Callable[[], Any]) -> None:
    """Let `failing` stand in for the workload's forward pass of one step."""

    def arm() -> None:
        forward = bench.workload.forward

        def fail(*_: Any) -> Any:
            bench.workload.forward = forward
            return failing()

        bench.workload.forward = fail

    bench.acts.setdefault(step, []).append(arm)


def test_a_change_that_was_too_much_is_undone_and_the_step_taken_again(bench: Bench) -> None:
    bench.fail_above(8)
    bench.ask(20, batch_size=32)
    assert bench.train() == LIMIT
    assert bench.listener.steps == list(range(1, LIMIT + 1))
    assert bench.workload.settings.batch_size == 8
    assert [json.loads(row.changed) for row in bench.journal.settings] == [
        {"batch_size": 32},
        {"batch_size": 8},
    ]
    assert [(ack.state, ack.step) for ack in bench.journal.acks] == [
        (CommandState.APPLIED, 20),
        (CommandState.ROLLED_BACK, 20),
    ]
    assert bench.journal.acks[1].message.startswith("Rolled back: Batch size 32 → 8 (loader rebuilt).")
    assert "Out of memory in step 20: " in bench.journal.acks[1].message
    (failure,) = bench.events(EventKind.OOM)
    assert (failure.severity, failure.step, failure.command_id) == (Severity.WARNING, 20, "c1")
    assert bench.journal.durable == [failure]
    (recovered,) = bench.events(EventKind.OOM_RECOVERED)
    assert recovered.step == 20
    assert bench.marks.settings_version == 3


def test_the_steps_after_a_recovery_are_transition(bench: Bench) -> None:
    bench.fail_above(8)
    bench.ask(20, batch_size=32)
    bench.train()
    taken = bench.listener.flags[20:]  # The first is the one that failed.
    assert taken[:5] == [StepFlag.TRANSITION] * 5
    assert not any(taken[5:])


def test_the_report_is_in_the_log_and_as_text_in_the_folder(bench: Bench, tmp_path: Path) -> None:
    bench.fail_above(8)
    bench.ask(20, batch_size=32)
    bench.train()
    (row,) = bench.journal.reports
    report = report_from_json(row.report)
    assert (row.step, row.outcome) == (20, report.outcome)
    assert report.facts.asked.phase is OomPhase.FORWARD
    assert report.facts.asked.module == ""
    assert report.facts.asked.site is not None
    assert report.facts.asked.site.startswith("tests/unit/test_recovery.py:")
    assert report.facts.asked.code == "raise torch.OutOfMemoryError(TEXT)"
    assert report.facts.asked.error_bytes == 2 << 30
    assert {holder.category for holder in report.facts.holders} >= {"weights", "optimizer state"}
    (path,) = (tmp_path / "captures").iterdir()
    assert path.name == "oom-step-20.txt"
    assert path.stat().st_mode & 0o777 == 0o600


def test_only_what_the_suspect_changed_is_undone(bench: Bench) -> None:
    bench.fail_above(8)
    bench.ask(18, "first", batch_size=32)
    bench.ask(18, "second", learning_rate=0.5)
    bench.train()
    assert bench.workload.settings.batch_size == 8
    assert bench.workload.settings.learning_rate == 0.5
    assert [ack.command_id for ack in bench.journal.acks if ack.state == CommandState.ROLLED_BACK] == [
        "first"
    ]


def test_two_changes_that_were_too_much_are_undone_one_after_the_other(bench: Bench) -> None:
    bench.fail_above(8)
    bench.ask(20, "first", batch_size=16)
    bench.ask(20, "second", batch_size=32)
    assert bench.train() == LIMIT
    assert bench.workload.settings.batch_size == 8
    rolled = [ack.command_id for ack in bench.journal.acks if ack.state == CommandState.ROLLED_BACK]
    assert rolled == ["second", "first"]


def test_an_old_change_is_no_suspect(bench: Bench) -> None:
    bench.ask(20, batch_size=16)
    in_a_step(bench, 40, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="no change of settings came right before it") as ended:
        bench.train()
    assert ended.value.step == 40
    assert bench.listener.steps == list(range(1, 40))
    assert json.loads(ended.value.detail)["policy"] == "rollback"
    assert bench.journal.reports[0].outcome.startswith("The run ends: no change of settings")


def test_a_change_that_takes_no_memory_is_no_suspect(bench: Bench) -> None:
    bench.ask(20, learning_rate=0.5)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="no change of settings"):
        bench.train()


def test_a_cap_that_was_too_low_is_undone(bench: Bench) -> None:
    bench.ask(20, memory_cap_gib=1.0)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    assert bench.train() == LIMIT
    assert bench.workload.settings.memory_cap_gib is None
    assert bench.device.allocator.limit_bytes == 8 << 30


def test_the_cap_is_off_while_it_recovers_and_set_again_after(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_cap_gib=1.0)
    bench.fail_above(8)
    bench.ask(20, batch_size=32)
    limits: list[int] = []
    reconfigure = bench.workload.reconfigure

    def watched(settings: Any) -> None:
        limits.append(bench.device.allocator.limit_bytes)
        reconfigure(settings)

    bench.workload.reconfigure = watched  # type: ignore[method-assign]
    bench.train()
    assert limits == [1 << 30, 8 << 30]
    assert bench.device.allocator.limit_bytes == 1 << 30


def test_a_cap_that_cannot_be_set_again_ends_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_cap_gib=1.0, oom_policy="skip")

    def leak() -> Any:
        bench.device.allocator.limit_bytes = 8 << 30
        bench.device.allocator.allocate(2 << 30)
        raise torch.OutOfMemoryError(TEXT)

    in_a_step(bench, 20, leak)
    with pytest.raises(NoRecoveryError, match=r"could not be set again: memory_cap_gib cannot be 1"):
        bench.train()


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "then", "words"),
    [
        (8, 1, (4, 2), "The effective batch stays 8."),
        (8, 3, (4, 6), "The effective batch stays 24."),
        (7, 2, (3, 4), "becomes 12 instead of 14, because 7 is odd and is rounded down."),
    ],
)
def test_half_the_batch_and_twice_the_accumulation(
    tmp_path: Path, batch_size: int, accumulation: int, then: tuple[int, int], words: str
) -> None:
    bench = Bench(tmp_path, oom_policy="halve", batch_size=batch_size, grad_accumulation=accumulation)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    assert bench.train() == LIMIT
    settings = bench.workload.settings
    assert (settings.batch_size, settings.grad_accumulation) == then
    assert words in bench.events(EventKind.OOM)[0].message


def test_a_single_sample_cannot_be_halved(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="halve", batch_size=1)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="a single sample already"):
        bench.train()


def test_what_a_policy_asks_for_and_cannot_be_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, oom_policy="halve")
    monkeypatch.setattr(bench.workload, "reconfigure", raising(RuntimeError("no\nroom")))
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="What oom_policy=halve asks for failed: no room"):
        bench.train()


def test_recoveries_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", oom_retries=2)
    for step in (10, 20, 30):
        in_a_step(bench, step, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match=r"No recovery is left .* Recoveries before: 2\.$"):
        bench.train()
    assert [event.step for event in bench.events(EventKind.OOM_RECOVERED)] == [10, 20]


def test_stop_ends_it_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="stop")
    in_a_step(bench, 20, raising(MemoryError()))
    with pytest.raises(NoRecoveryError, match="as oom_policy=stop asks"):
        bench.train()
    assert len(bench.journal.reports) == 1


def test_any_other_error_goes_on_up_as_it_is(bench: Bench) -> None:
    in_a_step(bench, 20, raising(RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        bench.train()
    assert not bench.journal.reports


def test_an_error_in_a_loader_worker_is_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    text = f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback\n{TEXT}"
    in_a_step(bench, 20, raising(RuntimeError(text)))
    with pytest.raises(NoRecoveryError, match="worker of the data loader"):
        bench.train()
    assert report_from_json(bench.journal.reports[0].report).facts.asked.phase is OomPhase.WORKER


def test_a_batch_that_could_not_be_loaded_is_left_out_with_a_new_loader(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    loader = bench.workload._loader
    bench.acts[20] = [lambda: setattr(loader, "next", raising(MemoryError()))]
    assert bench.train() == LIMIT
    assert bench.workload._loader is not loader
    assert report_from_json(bench.journal.reports[0].report).facts.asked.phase is OomPhase.DATA


def weights_of(bench: Bench) -> list[Tensor]:
    return [weight.detach().clone() for weight in bench.workload.model.parameters()]


@contextmanager
def kept(bench: Bench) -> Iterator[list["weakref.ref[Tensor]"]]:
    """The activations that the model's layers make, by weak reference."""
    made: list[weakref.ref[Tensor]] = []

    def note(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        made.append(weakref.ref(output))

    layers = [m for m in bench.workload.model.modules() if isinstance(m, nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    yield made
    for handle in handles:
        handle.remove()


def test_nothing_that_the_failed_step_made_is_alive_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    backward = bench.workload.backward
    weights: list[list[Tensor]] = []

    def fail(loss: Tensor) -> None:
        backward(loss)
        bench.workload.backward = backward
        raise torch.OutOfMemoryError(TEXT)

    def arm() -> None:
        bench.workload.backward = fail
        weights.append(weights_of(bench))

    gc.disable()
    try:
        with kept(bench) as made:
            bench.acts[20] = [arm]

            def look() -> None:
                gone = made[-6:]
                assert all(reference() is None for reference in gone)
                assert all(weight.grad is None for weight in bench.workload.model.parameters())
                assert all(map(torch.equal, weights[0], weights_of(bench)))

            settings_changed = bench.controller.settings_changed

            def checked(step: int) -> None:
                look()
                settings_changed(step)

            bench.controller.settings_changed = checked  # type: ignore[method-assign]
            assert bench.train() == LIMIT
    finally:
        gc.enable()


def test_a_failed_share_of_a_step_leaves_no_gradient_and_no_loss(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", grad_accumulation=3, amp="bf16")
    forward = bench.workload.forward
    calls: list[int] = []

    def second_fails(*batch: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            bench.workload.forward = forward
            raise torch.OutOfMemoryError(TEXT)
        return forward(*batch)

    bench.acts[20] = [lambda: setattr(bench.workload, "forward", second_fails)]
    assert bench.train() == LIMIT
    assert bench.workload._is_fresh


def test_fp16_goes_on_with_its_scale(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeDevice(FAKE_FACTS), oom_policy="skip", amp="fp16")
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    scales: list[float] = []
    bench.acts[20].append(lambda: scales.append(bench.workload._scaler.get_scale()))
    bench.acts[21] = [lambda: scales.append(bench.workload._scaler.get_scale())]
    assert bench.train() == LIMIT
    assert scales[0] == scales[1]


def out_of_budget(bench: Bench, step: int, budget_bytes: int) -> None:
    """Let the update of one step make so many bytes and no more."""

    def arm() -> None:
        update = bench.workload.update

        def within_budget() -> None:
            bench.workload.update = update
            with Budget(budget_bytes):
                update()

        bench.workload.update = within_budget

    bench.acts.setdefault(step, []).append(arm)


def test_the_optimizers_first_step_is_taken_again_when_only_its_state_was_being_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", optimizer_impl="loop")
    out_of_budget(bench, 1, 100_000)
    before = weights_of(bench)
    after: list[list[Tensor]] = []
    bench.acts[2] = [lambda: after.append(weights_of(bench))]
    assert bench.train() == LIMIT
    report = report_from_json(bench.journal.reports[0].report)
    assert report.facts.asked.phase is OomPhase.OPTIMIZER
    assert report.facts.is_first_update
    assert {float(kept["step"]) for kept in bench.workload.optimizer.state.values()} == {float(LIMIT)}
    assert not all(map(torch.equal, before, after[0]))


def test_an_update_that_failed_half_way_is_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", optimizer_impl="loop")
    out_of_budget(bench, 20, 100_000)
    with pytest.raises(NoRecoveryError, match="some may be updated and some not"):
        bench.train()


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_phase_is_known_by_the_phases_that_have_ended(micro_batches: int) -> None:
    turns = [OomPhase.DATA, OomPhase.COPY, OomPhase.FORWARD, OomPhase.BACKWARD] * micro_batches
    turns += [OomPhase.OPTIMIZER, OomPhase.TIDYING]
    assert [phase_after(laps, micro_batches) for laps in range(len(turns))] == turns


@pytest.mark.parametrize(
    ("part", "phase"),
    [
        ("next_batch", OomPhase.DATA),
        ("to_device", OomPhase.COPY),
        ("forward", OomPhase.FORWARD),
        ("backward", OomPhase.BACKWARD),
        ("update", OomPhase.OPTIMIZER),
        ("tidy", OomPhase.TIDYING),
    ],
)
def test_each_part_of_a_step_is_told_as_its_phase(tmp_path: Path, part: str, phase: OomPhase) -> None:
    bench = Bench(tmp_path, oom_policy="stop", grad_accumulation=2)
    bench.acts[20] = [lambda: setattr(bench.workload, part, raising(torch.OutOfMemoryError(TEXT)))]
    with pytest.raises(NoRecoveryError):
        bench.train()
    assert report_from_json(bench.journal.reports[0].report).facts.asked.phase is phase


def test_memory_that_stays_taken_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")

    def leak() -> Any:
        bench.device.allocator.allocate(100 << 20)
        raise torch.OutOfMemoryError(TEXT)

    in_a_step(bench, 20, leak)
    bench.acts[20].append(lambda: bench.memory.restart(1))
    bench.train()
    (failure,) = bench.events(EventKind.OOM)
    assert failure.message.endswith("100 MiB more than before the step stay allocated.")
    assert json.loads(failure.detail)["is_back"] is False


@pytest.mark.parametrize(
    ("levels", "is_back"),
    [
        (Levels(1 << 30, (1 << 30) + (50 << 20)), True),
        (Levels(1 << 30, (1 << 30) + (60 << 20)), False),
        (Levels(10 << 20, (10 << 20) + LEVEL_BYTES), True),
        (Levels(10 << 20, (10 << 20) + LEVEL_BYTES + 1), False),
        (Levels(None, 1), None),
        (Levels(1, None), None),
    ],
)
def test_the_level_counts_as_back_within_a_twentieth_or_8_mib(levels: Levels, is_back: bool | None) -> None:
    assert levels.is_back is is_back


@pytest.mark.parametrize("broken", ["lift_cap_for_recovery", "read_memory", "read_allocator", "read_room"])
def test_a_device_that_does_not_answer_does_not_keep_the_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    whole = getattr(bench.device, broken)
    monkeypatch.setattr(bench.device, broken, raising(RuntimeError("no answer")))
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    settings_changed = bench.controller.settings_changed

    def mend(step: int) -> None:
        monkeypatch.setattr(bench.device, broken, whole)
        settings_changed(step)

    monkeypatch.setattr(bench.controller, "settings_changed", mend)
    assert bench.train() == LIMIT
    assert len(bench.journal.reports) == 1


def test_a_folder_that_cannot_be_written_costs_the_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    (tmp_path / "captures").write_text("in the way")
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    assert bench.train() == LIMIT
    assert "could not be written as text" in capsys.readouterr().out
    assert len(bench.journal.reports) == 1
