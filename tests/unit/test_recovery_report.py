"""Test what is put down when memory ran out: report and text, the phase it was in, whatever else is
broken."""

from pathlib import Path

import pytest
import torch

from harness.analysis.oom.report import OomPhase, report_from_json
from harness.train.recovery import phase_after
from harness.watch.oom.errors import NoRecoveryError
from tests.recovery_factories import LIMIT, TEXT, Bench, in_a_step
from tests.train_factories import raising

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_report_is_in_the_log_and_as_text_in_the_folder(bench: Bench, tmp_path: Path) -> None:
    bench.fail_above(8)
    bench.request(20, batch_size=32)
    bench.train()
    (row,) = bench.reports
    report = report_from_json(row.report)
    assert (row.step, row.outcome) == (20, report.outcome)
    assert report.facts.request.phase is OomPhase.FORWARD
    assert report.facts.request.module == ""
    assert report.facts.request.site is not None
    assert report.facts.request.site.startswith("tests/recovery_factories.py:")
    assert report.facts.request.code == "raise torch.OutOfMemoryError(TEXT)"
    assert report.facts.request.error_bytes == 2 << 30
    assert {holder.category for holder in report.facts.holders} >= {"weights", "optimizer state"}
    (path,) = (tmp_path / "captures").iterdir()
    assert path.name == "oom-step-20.txt"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_error_in_a_loader_worker_is_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    text = f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback\n{TEXT}"
    in_a_step(bench, 20, raising(RuntimeError(text)))
    with pytest.raises(NoRecoveryError, match="worker of the data loader"):
        bench.train()
    assert report_from_json(bench.reports[0].report).facts.request.phase is OomPhase.WORKER


def test_a_batch_that_could_not_be_loaded_is_left_out_with_a_new_loader(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    loader = bench.workload._loader
    bench.acts[20] = [lambda: setattr(loader, "next", raising(MemoryError()))]
    assert bench.train() == LIMIT
    assert bench.workload._loader is not loader
    assert report_from_json(bench.reports[0].report).facts.request.phase is OomPhase.DATA


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
    assert report_from_json(bench.reports[0].report).facts.request.phase is phase


@pytest.mark.parametrize(
    "broken", ["lift_cap_for_recovery", "read_memory", "read_allocator", "read_memory_info"]
)
def test_a_device_that_does_not_answer_does_not_keep_the_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    whole = getattr(bench.device, broken)
    monkeypatch.setattr(bench.device, broken, raising(RuntimeError("no answer")))
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    changed = bench.steps.boundary.changed

    def mend(step: int) -> None:
        monkeypatch.setattr(bench.device, broken, whole)
        changed(step)

    monkeypatch.setattr(bench.steps.boundary, "changed", mend)
    assert bench.train() == LIMIT
    assert len(bench.reports) == 1


def test_a_folder_that_cannot_be_written_costs_the_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    (tmp_path / "captures").write_text("in the way")
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    assert bench.train() == LIMIT
    assert "could not be written as text" in capsys.readouterr().err
    assert len(bench.reports) == 1
