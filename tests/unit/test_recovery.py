"""Recovery from running out of memory within a step: what each policy changes, and when the run ends."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.oom.report import LeakSign
from harness.records.measurement import MeasurementEnd, MeasurementEndRow
from harness.records.run import CommandState, EventKind, Severity, StepFlag
from harness.watch.oom.errors import NoRecoveryError
from harness.watch.oom.history import RunHistory
from tests.recovery_factories import LIMIT, TEXT, Bench, in_a_step
from tests.train_factories import raising

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_change_that_was_too_much_is_undone_and_the_step_taken_again(bench: Bench) -> None:
    bench.fail_above(8)
    bench.request(20, batch_size=32)
    assert bench.train() == LIMIT
    assert bench.taken == list(range(1, LIMIT + 1))
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


NO_ENGINE = RuntimeError(
    "FIND was unable to find an engine to execute this computation after trying 3 plans."
)


def test_a_convolution_without_room_for_its_workspace_is_recovered_from(bench: Bench) -> None:
    """cuDNN's plans swallow the allocator's error; its counters tell."""

    def convolve() -> None:
        with suppress(torch.OutOfMemoryError):
            bench.device.allocator.allocate(1 << 50)
        raise NO_ENGINE

    in_a_step(bench, 20, convolve)
    bench.request(18, batch_size=32)
    assert bench.train() == LIMIT
    (failure,) = bench.events(EventKind.OOM)
    assert failure.step == 20
    assert bench.workload.settings.batch_size == 8


def test_the_same_text_without_a_failed_allocation_is_another_error(bench: Bench) -> None:
    with suppress(torch.OutOfMemoryError):
        bench.device.allocator.allocate(1 << 50)
    bench.memory.restart(steps=5)
    in_a_step(bench, 20, raising(NO_ENGINE))
    with pytest.raises(RuntimeError, match="FIND was unable"):
        bench.train()
    assert not bench.events(EventKind.OOM)


def test_the_steps_after_a_recovery_are_transition(bench: Bench) -> None:
    bench.fail_above(8)
    bench.request(20, batch_size=32)
    bench.train()
    taken = bench.flags[20:]  # The first is the one that failed.
    assert taken[:5] == [StepFlag.TRANSITION] * 5
    assert not any(taken[5:])


def test_so_are_those_after_a_recovery_that_changed_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    bench.train()
    assert bench.flags[19] == 0  # That of the step that failed.
    assert bench.flags[20:25] == [StepFlag.TRANSITION] * 5
    assert not any(bench.flags[25:])


def test_only_what_the_suspect_changed_is_undone(bench: Bench) -> None:
    bench.fail_above(8)
    bench.request(18, "first", batch_size=32)
    bench.request(18, "second", learning_rate=0.5)
    bench.train()
    assert bench.workload.settings.batch_size == 8
    assert bench.workload.settings.learning_rate == 0.5
    assert [ack.command_id for ack in bench.journal.acks if ack.state == CommandState.ROLLED_BACK] == [
        "first"
    ]


def test_two_changes_that_were_too_much_are_undone_one_after_the_other(bench: Bench) -> None:
    bench.fail_above(8)
    bench.request(20, "first", batch_size=16)
    bench.request(20, "second", batch_size=32)
    assert bench.train() == LIMIT
    assert bench.workload.settings.batch_size == 8
    rolled = [ack.command_id for ack in bench.journal.acks if ack.state == CommandState.ROLLED_BACK]
    assert rolled == ["second", "first"]


def test_an_old_change_is_no_suspect(bench: Bench) -> None:
    bench.request(20, batch_size=16)
    in_a_step(bench, 40, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="there is no recent change of settings") as ended:
        bench.train()
    assert ended.value.step == 40
    assert bench.taken == list(range(1, 40))
    assert json.loads(ended.value.detail)["policy"] == "rollback"
    assert bench.reports[0].outcome.startswith("The run ends: there is no recent change of settings")


def test_a_change_that_takes_no_memory_is_no_suspect(bench: Bench) -> None:
    bench.request(20, learning_rate=0.5)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    with pytest.raises(NoRecoveryError, match="no recent change of settings"):
        bench.train()


def test_a_cap_that_was_too_low_is_undone(bench: Bench) -> None:
    bench.request(20, memory_cap_gib=1.0)
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    assert bench.train() == LIMIT
    assert bench.workload.settings.memory_cap_gib is None
    assert bench.device.allocator.limit_bytes == 8 << 30


def test_the_cap_is_off_while_it_recovers_and_set_again_after(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_cap_gib=1.0)
    bench.fail_above(8)
    bench.request(20, batch_size=32)
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
    with pytest.raises(NoRecoveryError, match="oom_policy=halve failed: no room"):
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
    with pytest.raises(NoRecoveryError, match="because of oom_policy=stop"):
        bench.train()
    assert len(bench.reports) == 1


def test_any_other_error_goes_on_up_as_it_is(bench: Bench) -> None:
    in_a_step(bench, 20, raising(RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        bench.train()
    assert not bench.reports


LEAK = LeakSign("allocated", "Memory in live tensors had grown.", 1e6, 6, None)


@pytest.mark.parametrize(("policy", "leak"), [("rollback", None), ("rollback", LEAK), ("halve", LEAK)])
def test_half_the_batch_is_not_advised_against_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, leak: LeakSign | None
) -> None:
    text = RunHistory(leak=leak)
    monkeypatch.setattr("harness.watch.oom.reporter.read_history", lambda *_, **__: text)
    bench = Bench(tmp_path, oom_policy=policy)
    full = (
        f"{TEXT} GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. Including non-PyTorch "
        "memory, this process has 79.00 GiB memory in use."
    )
    in_a_step(bench, 40, raising(torch.OutOfMemoryError(full)))
    with suppress(NoRecoveryError):
        bench.train()
    outcome = bench.reports[0].outcome
    assert ("With oom_policy=halve the run would continue" in outcome) is (leak is None)
    assert ("a leak fills the freed memory" in outcome) is (leak is not None)


@pytest.mark.parametrize("policy", ["stop", "rollback"])
def test_a_measured_change_that_is_too_much_is_undone_and_training_goes_on(
    tmp_path: Path, policy: str
) -> None:
    bench = Bench(tmp_path, oom_policy=policy)
    bench.fail_above(8)
    bench.measure(20, batch_size=32)
    assert bench.train() == LIMIT
    assert bench.workload.settings.batch_size == 8
    (end,) = bench.journal.of(MeasurementEndRow)
    assert (end.state, end.step) == (MeasurementEnd.OUT_OF_MEMORY, 20)
    assert [ack.state for ack in bench.journal.acks] == [CommandState.APPLIED, CommandState.ROLLED_BACK]
    assert "The measured change is undone: Batch size 32 → 8" in bench.journal.acks[1].message
