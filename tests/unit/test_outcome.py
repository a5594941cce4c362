"""The last word of a run, whatever happened."""

import gc
import json
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from harness.analysis.oom.report import OomVerdict, report_from_json
from harness.errors import SettingError
from harness.records.memory import OomReportRow
from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.settings.spec import SPECS
from harness.store.folder import RunFolder
from harness.watch.boundary import Outcome
from harness.watch.context import Progress
from harness.watch.memory import MemoryWatch
from harness.watch.oom import raised as raised_module
from harness.watch.oom.errors import NoRecoveryError
from harness.watch.oom.reporter import OomReporter, Subject
from harness.watch.outcome import OutcomeRecorder
from harness.watch.recent_changes import AppliedChange
from tests.train_factories import NOWHERE, FakeJournal, a_context, a_device, a_workload, raising

pytestmark = pytest.mark.slow


class Bench:
    """Records how a run ends whose 41st step was the newest; `captures` lies in `folder`."""

    def __init__(self, folder: Path = NOWHERE, *, is_training: bool = True) -> None:
        self.device, self.journal = a_device(), FakeJournal()
        progress = Progress(last_step=41 * is_training)
        self.context = context = a_context(self.device, self.journal, lambda: 77, progress)
        self.memory, self.workload = MemoryWatch(self.device), a_workload(self.device)
        reporter = OomReporter(
            context, self.memory, RunFolder(folder), self.workload.settings, frozenset(SPECS)
        )
        self.reports: list[tuple[RunState, str]] = []
        report = lambda *outcome: self.reports.append(outcome)  # noqa: E731
        self.outcome = OutcomeRecorder(context, self.memory, reporter, lambda: 1_000, report)
        self.subject = Subject(self.workload) if is_training else None

    def fail(self, error: BaseException) -> None:
        with self.outcome.recording(self.subject):
            raise error

    def run_out(self, error: BaseException) -> None:
        with suppress(type(error)):
            self.fail(error)

    @property
    def event(self) -> EventRow:
        (event,) = self.journal.events
        return event


def test_an_end_that_was_meant_is_recorded_as_it_is() -> None:
    bench = Bench()
    with bench.outcome.recording():
        bench.outcome.end(Outcome(RunState.FINISHED, "Took all 3 steps."))
    assert bench.journal.end == (RunState.FINISHED, "Took all 3 steps.", 1_000)
    assert bench.reports == [(RunState.FINISHED, "Took all 3 steps.")]
    assert bench.outcome.state is RunState.FINISHED
    assert bench.journal.events == []


def test_an_error_is_recorded_with_its_last_lines_and_goes_on_up() -> None:
    bench = Bench()
    with pytest.raises(ValueError, match="shapes"):
        bench.fail(ValueError("shapes do\n  not fit"))
    assert bench.journal.end == (RunState.FAILED, "ValueError: shapes do not fit", 1_000)
    event = bench.event
    assert (event.kind, event.severity, event.step, event.t_ns) == (EventKind.ERROR, Severity.ERROR, 41, 77)
    detail = json.loads(event.detail)
    assert detail["error"] == "ValueError"
    assert "shapes do" in "".join(detail["last_lines"])


def test_an_error_soon_after_a_live_change_is_recorded_with_it() -> None:
    bench = Bench()
    values = {"batch_size": 16}, {"batch_size": 32}
    bench.context.changes.add(AppliedChange(42, *values, "Batch size 16 → 32.", "c1"))
    bench.run_out(ValueError("expected 16 rows, got 32"))
    message = bench.event.message
    assert message == (
        "ValueError: expected 16 rows, got 32. It failed in the first step after a live change: Batch size "
        "16 → 32, before step 42. The error names both batch sizes: the change is the likely cause. "
        "`stepscope run … --batch-size 16` begins with the value before."
    )
    assert bench.journal.end == (RunState.FAILED, message, 1_000)
    assert bench.reports == [(RunState.FAILED, message)]


def test_the_end_of_a_loaders_worker_is_recorded_with_the_memory_that_was_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = RuntimeError("DataLoader worker (pid(s) 4242) exited unexpectedly")
    text = f"RuntimeError: {error}"
    bench = Bench()
    bench.run_out(error)
    assert bench.event.message == text
    monkeypatch.setattr(OomReporter, "shortage", lambda self: "Memory was short: so.")
    bench = Bench()
    bench.run_out(error)
    assert bench.event.message == (
        f"{text}. Memory was short: so. Fewer workers, smaller batches or a smaller prefetch_factor need "
        "less memory."
    )
    bench = Bench()
    bench.run_out(RuntimeError("something else"))
    assert bench.event.message == "RuntimeError: something else"


def test_memory_that_runs_out_soon_after_a_live_change_is_recorded_with_it() -> None:
    bench = Bench()
    bench.context.changes.add(AppliedChange(40, {"amp": "bf16"}, {"amp": "off"}, "AMP bf16 → off.", "c1"))
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB."))
    assert "It failed 2 steps after a live change: AMP bf16 → off, before step 40." in bench.event.message


def test_our_own_error_is_its_sentence_alone() -> None:
    bench = Bench()
    with pytest.raises(SettingError):
        bench.fail(SettingError("batch_size", "The batch is too large; make it smaller."))
    assert bench.journal.end is not None
    assert bench.journal.end[1] == "The batch is too large; make it smaller."
    detail = {"error": "SettingError", "last_lines": [], "setting": "batch_size"}
    assert json.loads(bench.event.detail) == detail


def test_an_error_without_words_is_named_by_its_type() -> None:
    bench = Bench()
    with pytest.raises(KeyError):
        bench.fail(KeyError())
    assert bench.journal.end is not None
    assert bench.journal.end[1] == "KeyError"


def test_bold_text_of_a_terminal_is_recorded_as_text() -> None:
    bench = Bench()
    bench.run_out(ValueError("two options, \x1b[1mdo those steps\x1b[0m: (1)"))
    assert bench.event.message == "ValueError: two options, do those steps: (1)"


def test_running_out_of_memory_is_recorded_with_what_was_allocated() -> None:
    bench = Bench()
    bench.device.allocator.allocate(3 << 30)
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB."))
    assert bench.outcome.state is RunState.OUT_OF_MEMORY
    assert bench.journal.end is not None
    state, message, _ = bench.journal.end
    assert state is RunState.OUT_OF_MEMORY
    assert message.startswith("Out of memory in step 42: ")
    event = bench.event
    assert (event.kind, event.step, event.label) == (EventKind.OOM, 42, "out of memory")
    detail = json.loads(event.detail)
    assert detail["memory"]["allocated_bytes"] == 3 << 30
    assert detail["device"] == "Test CPU"


def test_where_there_is_no_memory_for_a_report_the_error_s_own_text_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.device.allocator.allocate(3 << 30)
    monkeypatch.setattr(raised_module, "clean", raising(MemoryError()))
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB."))
    assert bench.journal.end is not None
    assert bench.journal.end[1] == (
        "Out of memory in step 42: 3.00 GiB were allocated when it failed. "
        "CUDA out of memory. Tried to allocate 6.00 GiB."
    )


def test_running_out_of_memory_before_the_first_step_says_so() -> None:
    bench = Bench(is_training=False)
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory."))
    assert bench.journal.end is not None
    assert bench.journal.end[1].startswith("Out of memory before the first step: ")


def test_an_ambiguous_error_is_about_memory_when_the_allocators_counters_say_so() -> None:
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    bench = Bench()
    with suppress(torch.OutOfMemoryError):
        bench.device.allocator.allocate(1 << 50)
    bench.run_out(error)
    assert bench.outcome.state is RunState.OUT_OF_MEMORY
    other = Bench()
    with pytest.raises(RuntimeError):
        other.fail(error)
    assert other.outcome.state is RunState.FAILED


@pytest.mark.parametrize(
    ("is_training", "begins"),
    [(False, "Out of memory before the first step: "), (True, "Out of memory in step 42: ")],
)
def test_running_out_where_nothing_recovers_is_reported_too(
    tmp_path: Path, is_training: bool, begins: str
) -> None:
    bench = Bench(tmp_path, is_training=is_training)
    journal = bench.journal
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."))
    (row,) = journal.of(OomReportRow)
    report = report_from_json(row.report)
    assert report.verdict is OomVerdict.HUGE_REQUEST
    assert report.outcome == "The run ends; no recovery is possible here."
    assert journal.end is not None
    assert journal.end[1] == report.sentence
    assert report.sentence.startswith(begins)
    (event,) = journal.events
    assert json.loads(event.detail)["verdict"] == "one huge request"
    assert len(list((tmp_path / "captures").iterdir())) == 1


def test_an_end_that_recovery_decided_on_is_recorded_with_its_words() -> None:
    bench = Bench()
    bench.run_out(NoRecoveryError("Out of memory in step 7: no more.", 7, '{"verdict": "leak"}'))
    assert bench.journal.end == (RunState.OUT_OF_MEMORY, "Out of memory in step 7: no more.", 1_000)
    event = bench.event
    assert (event.kind, event.severity, event.step) == (EventKind.OOM, Severity.ERROR, 7)
    assert json.loads(event.detail) == {"verdict": "leak"}


def test_a_very_long_error_is_cut_and_says_so() -> None:
    bench = Bench()
    with pytest.raises(ValueError):
        bench.fail(ValueError("x" * 100_000))
    assert bench.journal.end is not None
    assert len(bench.journal.end[1]) < 3_000
    assert bench.journal.end[1].endswith("x…")


def failing_step(retained: list[weakref.ref[torch.Tensor]], read: Callable[[], None]) -> None:
    activations = torch.zeros(1000)
    retained.append(weakref.ref(activations))
    read()
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_what_the_failed_step_held_is_measured_and_then_let_go() -> None:
    bench, retained, order = Bench(), list[weakref.ref[torch.Tensor]](), list[str]()
    read_memory, empty_cache = bench.device.read_memory, bench.device.empty_cache

    def reading() -> object:
        order.append(f"read, held: {retained[0]() is not None}")
        return read_memory()

    def emptying() -> None:
        gc.collect()
        order.append(f"empty, held: {retained[0]() is not None}")
        empty_cache()

    bench.device.read_memory = reading  # type: ignore[method-assign,assignment]
    bench.device.empty_cache = emptying  # type: ignore[method-assign]
    with suppress(torch.OutOfMemoryError), bench.outcome.recording(bench.subject):
        failing_step(retained, lambda: None)
    assert order == ["read, held: True", "empty, held: False"]


def test_a_device_that_is_broken_too_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.device, "synchronize", raising(RuntimeError("device lost")))
    with pytest.raises(ValueError):
        bench.fail(ValueError("the real reason"))
    assert bench.journal.end is not None
    assert bench.journal.end[1] == "ValueError: the real reason"


def test_steps_still_on_the_device_are_let_finish_first() -> None:
    bench = Bench()
    bench.device.queue.lag_marks = 100
    event = bench.device.queue.event()
    event.record()
    with pytest.raises(ValueError):
        bench.fail(ValueError("stop"))
    assert event.query()


@pytest.mark.parametrize("broken", ["lift_cap_for_recovery", "read_memory", "synchronize", "empty_cache"])
def test_a_device_that_answers_no_more_does_not_keep_the_last_word_from_being_said(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    monkeypatch.setattr(
        bench.device, broken, raising(RuntimeError("CUDA error: device-side assert triggered"))
    )
    bench.run_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert bench.journal.end is not None
    assert bench.journal.end[0] is RunState.OUT_OF_MEMORY
    assert bench.event.kind == EventKind.OOM
