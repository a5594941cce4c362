"""Test which lines make the CPU wait for the GPU, and what lies elsewhere. Torch's debug mode is a fake."""

import inspect
import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.device.testing.device import FAKE_FACTS, FakeDevice, FakeSyncDebugMode
from harness.records.run import EventKind, EventRow, StepFlag
from harness.watch.boundary import TRANSITION_STEPS, WARM_UP_STEPS, Boundary
from harness.watch.controller import StepController
from harness.watch.guard import FailureGuard
from harness.watch.inbox import Inbox
from harness.watch.inspect.inspection import STEPS, Inspection, open_inspection
from harness.watch.inspect.syncs import SyncCatcher
from harness.watch.limits import RunLimits
from harness.watch.live_settings import LiveSettings
from harness.watch.memory import MemoryWatch
from harness.watch.timing import StepTimer
from tests.train_factories import Clock, FakeJournal, a_command, a_context, a_workload


def a_catcher() -> tuple[SyncCatcher, FakeSyncDebugMode]:
    cuda = FakeSyncDebugMode()
    return SyncCatcher(cuda), cuda


def test_the_fake_has_the_functions_of_torchs_with_their_parameters() -> None:
    for name in ("get_sync_debug_mode", "set_sync_debug_mode"):
        real = inspect.signature(getattr(torch.cuda, name)).parameters
        assert list(inspect.signature(getattr(FakeSyncDebugMode(), name)).parameters) == list(real)


def test_synchronising_calls_are_counted_by_their_line_and_not_shown(
    recwarn: pytest.WarningsRecorder,
) -> None:
    catcher, cuda = a_catcher()
    assert catcher.start()
    for _ in range(3):
        cuda.wait()
    cuda.wait()
    sites = catcher.stop()
    assert [(site.calls, site.code) for site in sites] == [(3, "cuda.wait()"), (1, "cuda.wait()")]
    assert sites[0].site.startswith("tests/unit/test_inspection.py:")
    assert sites[0].site.endswith(" test_synchronising_calls_are_counted_by_their_line_and_not_shown")
    assert len(recwarn) == 0
    assert cuda.mode == 0


def test_the_state_of_warnings_is_as_before() -> None:
    catcher, cuda = a_catcher()
    before = warnings.showwarning, list(warnings.filters)
    assert catcher.start()
    cuda.wait()
    catcher.stop()
    assert catcher.stop() == []
    assert (warnings.showwarning, list(warnings.filters)) == before
    cuda.wait()


def test_a_mode_that_the_program_sets_meanwhile_stays() -> None:
    catcher, cuda = a_catcher()
    assert catcher.start()
    cuda.mode = 2  # torch.cuda.set_sync_debug_mode("error")
    with warnings.catch_warnings():
        assert cuda.mode == 2
    catcher.stop()
    assert cuda.mode == 2


@pytest.mark.parametrize("is_recording", [False, True])
def test_a_block_with_filters_of_its_own_sees_no_warning_of_ours(is_recording: bool) -> None:
    catcher, cuda = a_catcher()
    assert catcher.start()
    with warnings.catch_warnings(record=is_recording) as shown:
        warnings.simplefilter("error")
        with warnings.catch_warnings():
            cuda.wait()
        cuda.wait()
        if is_recording:
            warnings.simplefilter("always")
            cuda.wait()
    cuda.wait()  # Counted
    assert [(site.calls, site.code) for site in catcher.stop()] == [(1, "cuda.wait()  # Counted")]
    assert not shown
    assert cuda.mode == 0


def test_warnings_that_become_errors_for_good_leave_ours_out() -> None:
    with warnings.catch_warnings():
        before = warnings.catch_warnings.__enter__, warnings.simplefilter, warnings.filterwarnings
        catcher, cuda = a_catcher()
        assert catcher.start()
        warnings.simplefilter("error")
        cuda.wait()
        warnings.resetwarnings()
        warnings.filterwarnings("error")
        cuda.wait()
        assert sum(site.calls for site in catcher.stop()) == 2
        assert (warnings.catch_warnings.__enter__, warnings.simplefilter, warnings.filterwarnings) == before


def test_counting_ends_with_a_block_in_which_it_began(recwarn: pytest.WarningsRecorder) -> None:
    catcher, cuda = a_catcher()
    with warnings.catch_warnings():
        assert catcher.start()
        cuda.wait()
    cuda.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
    cuda.wait()
    assert [site.calls for site in catcher.stop()] == [1]
    assert (len(recwarn), cuda.mode) == (0, 0)


def test_other_warnings_go_where_they_went(recwarn: pytest.WarningsRecorder) -> None:
    catcher, _ = a_catcher()
    warnings.simplefilter("always")
    catcher.start()
    warnings.warn("something else", UserWarning, stacklevel=1)
    catcher.stop()
    assert [str(warning.message) for warning in recwarn] == ["something else"]


def test_what_was_shown_once_is_not_shown_again_because_of_it(recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("default")
    catcher, _ = a_catcher()
    for _ in range(2):
        catcher.start()
        warnings.warn("only once", UserWarning, stacklevel=1)
        catcher.stop()
    assert len(recwarn) == 1


def test_calls_of_other_threads_are_neither_counted_nor_shown(recwarn: pytest.WarningsRecorder) -> None:
    catcher, cuda = a_catcher()
    catcher.start()
    thread = threading.Thread(target=cuda.wait)
    thread.start()
    thread.join()
    assert catcher.stop() == []
    assert len(recwarn) == 0


class Waits(torch.autograd.Function):
    """Waits for the device in its backward pass."""

    wait: Any = None

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        Waits.wait()
        return gradients[0]


def test_what_a_backward_pass_written_in_python_does_on_autograds_thread_counts() -> None:
    catcher, cuda = a_catcher()
    loss = Waits.apply(torch.ones((), requires_grad=True))  # type: ignore[no-untyped-call]  # torch's
    catcher.start()
    Waits.wait = staticmethod(cuda.wait)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    (site,) = catcher.stop()
    assert (site.code, site.calls) == ("Waits.wait()", 1)
    assert site.site.endswith(" backward")


def test_a_mode_that_somebody_else_switched_on_is_left_alone() -> None:
    catcher, cuda = a_catcher()
    cuda.mode = 1
    assert not catcher.start()
    assert not catcher.is_on
    assert catcher.stop() == []
    assert cuda.mode == 1


class RaisingGuard(FailureGuard):
    """Keeps what raised."""

    def __init__(self, failures: list[Exception]) -> None:
        super().__init__(lambda *_: None)
        self._failures_kept = failures

    def run(self, name: str, function: Callable[[], None]) -> bool:
        try:
            function()
        except RuntimeError as error:
            self._failures_kept.append(error)
            return False
        return True


class Bench:
    """A run on a fake GPU that is inspected; `syncs` are made in each step."""

    def __init__(self, **values: Any) -> None:
        self.cuda = FakeSyncDebugMode()
        self.device = FakeDevice(FAKE_FACTS)
        self.workload = a_workload(self.device, **values)
        self.journal, self.inbox, self.failures = FakeJournal(), Inbox(), list[Exception]()
        context = a_context(self.device, self.journal, guard=RaisingGuard(self.failures))
        self.marks = context.marks
        self.inspection = Inspection(context, self.workload, SyncCatcher(self.cuda))
        self.boundary = Boundary(self.marks, MemoryWatch(self.device), StepTimer(Clock()))
        actions = [RunLimits(context, self.workload), LiveSettings(context, self.workload), self.inspection]
        self.controller = StepController(context, self.inbox, self.boundary, actions)
        self.examined: list[int] = []
        self.step = 0

    def take(self, steps: int, syncs: int = 0) -> None:
        for _ in range(steps):
            self.step += 1
            assert self.controller.proceed(self.step)
            if self.cuda.mode:
                self.examined.append(self.step)
                assert self.marks.flags & (StepFlag.WARM_UP | StepFlag.TRANSITION)
            for _ in range(syncs):
                self.cuda.wait()

    @property
    def found(self) -> list[EventRow]:
        return [event for event in self.journal.events if event.kind == EventKind.INSPECTION]


def test_the_last_steps_of_the_warm_up_and_after_a_change_are_looked_at() -> None:
    bench = Bench()
    bench.take(20, syncs=2)
    assert bench.examined == [WARM_UP_STEPS - 1, WARM_UP_STEPS]
    bench.inbox.put(a_command(payload='{"learning_rate": 0.5}'))
    bench.take(20)
    last = 20 + TRANSITION_STEPS
    assert bench.examined[STEPS:] == [last - 1, last]
    first, second = bench.found
    assert first.step == WARM_UP_STEPS
    assert "The CPU waited for the GPU 4 times in 2 steps, 4 times at tests/unit/test_inspection.py:" in (
        first.message
    )
    assert json.loads(first.detail)["syncs"][0]["code"] == "self.cuda.wait()"
    assert json.loads(first.detail)["steps"] == STEPS
    assert second.message == "No line made the CPU wait for the GPU in 2 steps."
    assert json.loads(second.detail)["syncs"] == []


def test_settled_steps_pay_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.take(WARM_UP_STEPS + 2)

    def refuse(*_: object) -> bool:
        raise AssertionError("a settled step asked the inspection")

    monkeypatch.setattr(bench.inspection, "before_step", refuse)
    bench.take(50)


@pytest.mark.parametrize("flag", [StepFlag.PROFILED, StepFlag.TRACKED])
def test_steps_that_are_recorded_are_not_inspected(flag: StepFlag) -> None:
    bench = Bench()
    boundary = bench.boundary
    boundary.step = 5
    boundary.flag(flag)
    bench.inspection.before_step(boundary)
    assert bench.cuda.mode == 0
    boundary.step = 4
    boundary.begin_flags()
    bench.inspection.before_step(boundary)
    assert bench.cuda.mode == 1
    boundary.step = 5
    boundary.flag(flag)
    bench.inspection.before_step(boundary)
    assert bench.cuda.mode == 0


def test_a_run_that_ends_in_the_midst_of_it_leaves_the_mode_off() -> None:
    bench = Bench(max_steps=4)
    bench.take(4)
    assert bench.cuda.mode == 1
    assert not bench.controller.proceed(5)
    assert bench.cuda.mode == 0
    assert bench.found == []


def test_a_mode_that_cannot_be_switched_on_does_not_disturb_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()

    def refuse() -> int:
        raise RuntimeError("no CUDA")

    monkeypatch.setattr(bench.cuda, "get_sync_debug_mode", refuse)
    bench.take(10)
    assert bench.failures
    assert bench.cuda.mode == 0


def test_on_the_cpu_nothing_is_inspected() -> None:
    device = FakeDevice(FAKE_FACTS)
    assert open_inspection(a_context(device), a_workload(device)) is None


def test_what_lies_elsewhere_is_told_with_the_first_look() -> None:
    bench = Bench()
    bench.workload.model.register_buffer("positions", torch.zeros(1 << 20, device="meta"))
    bench.take(10)
    (event,) = bench.found
    assert "The buffer positions (4.00 MiB) is not on cpu." in event.message
    (text,) = json.loads(event.detail)["elsewhere"]
    assert text == {"what": "buffer", "name": "positions", "device": "meta", "size_bytes": 4 << 20}
