"""Profiles of a watch beside the profilers of the script: its own are complete, and the process lives.

Without the patches most of these end the process with a segmentation fault (torch 2.13).
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import profiler, profiler_legacy
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler.profiler import _KinetoProfile

from harness.records.profile import ProfileRow
from harness.records.run import CommandKind, CommandState
from tests.session_factories import Attached, a_session
from tests.train_factories import SteppedRun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:Warning. Profiler clears events", "ignore:.*is deprecated:FutureWarning"
    ),
]
CPU = [ProfilerActivity.CPU]
BEGAN, IS_ON = "another profiler was started", "another profiler is active"
# Steps from a request to the window, to its warm-up and to its first recorded step.
STEPS = {"before": 4, "in its warm-up": 5, "while it records": 6}


class Script:
    """A training of three lines."""

    def __init__(self) -> None:
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(4, 8)).square().mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def names(events: Any) -> list[str]:
    return [event.name for event in events]


def refused(attached: Attached, request: str, reason: str) -> None:
    answer = attached.answer(request)
    assert (answer.state, reason in answer.message) == (CommandState.REJECTED, True), answer.message
    with attached.log() as log:
        (row,) = log.profiles.all()
    assert reason in row.message


@pytest.mark.parametrize("after", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("kind", [lambda: profile(activities=CPU), lambda: profiler.profile(use_kineto=True)])
def test_a_profile_gives_way_to_one_of_the_script(
    tmp_path: Path, kind: Callable[[], AbstractContextManager[Any]], after: int
) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.PROFILE, steps=10)
        script.steps(after)
        with kind() as own:
            script.steps(2)
        script.steps(20)
        assert attached.guard.is_on
    events = own.events() if isinstance(own, profile) else own.function_events
    assert names(events).count("aten::linear") == 2
    assert not [name for name in names(events) if name.startswith("stepscope")]
    refused(attached, request, BEGAN)


@pytest.mark.parametrize("kind", [profiler.emit_itt, profiler_legacy.profile])
def test_a_profile_gives_way_to_ranges_and_to_the_legacy_profiler(tmp_path: Path, kind: Any) -> None:
    script = Script()
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.PROFILE, steps=10)
        script.steps(6)
        with kind():
            script.step()
        with kind(enabled=False):
            script.steps(4)
    refused(attached, request, BEGAN)


def test_a_profile_gives_way_to_one_that_begins_within_a_range_of_ours(tmp_path: Path) -> None:
    script, own = Script(), _KinetoProfile(activities=CPU)
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.PROFILE, steps=10)
        script.steps(6)
        handle = script.model.register_forward_pre_hook(lambda *_: own.start())
        script.step()
        handle.remove()
        script.step()
        own.stop()
        script.steps(10)
    assert names(own.events()).count("aten::linear") == 2
    refused(attached, request, BEGAN)


@pytest.mark.parametrize("is_early", [True, False], ids=["before the watch", "under watch"])
def test_no_profile_begins_while_one_of_the_script_warms_up(tmp_path: Path, is_early: bool) -> None:
    script, traces = Script(), []
    own = profile(
        activities=CPU,
        schedule=schedule(wait=0, warmup=30, active=2, repeat=2),
        on_trace_ready=lambda one: traces.append(names(one.events())),
    )
    if is_early:
        own.start()
    with a_session(tmp_path) as attached:
        script.steps(8)
        if not is_early:
            own.start()
        request = attached.ask(CommandKind.PROFILE, steps=2)
        for _ in range(64):
            script.step()
            own.step()
        own.stop()
        script.steps(4)
        again = attached.ask(CommandKind.PROFILE, steps=2)
        script.steps(16)
    assert [trace.count("aten::linear") for trace in traces] == [2, 2]
    answer = attached.answer(request)
    assert (answer.state, IS_ON in answer.message) == (CommandState.REJECTED, True), answer.message
    assert attached.answer(again).state == CommandState.APPLIED


def test_a_profiler_that_was_on_before_the_watch_can_end(tmp_path: Path) -> None:
    script, attached = Script(), ExitStack()
    with profiler.profile(use_kineto=True):
        session = attached.enter_context(a_session(tmp_path))
        script.steps(8)
        early = session.ask(CommandKind.PROFILE, steps=2)
        script.steps(8)
    late = session.ask(CommandKind.PROFILE, steps=2)
    script.steps(16)
    attached.close()
    assert IS_ON in session.answer(early).message
    assert session.answer(late).state == CommandState.APPLIED


@pytest.mark.parametrize("after", [4, 5, 6])
def test_a_profile_gives_way_to_one_on_another_thread(tmp_path: Path, after: int) -> None:
    script, counts = Script(), []

    def other() -> None:
        with profile(activities=CPU) as own:
            torch.ones(3).sum()
        counts.append(names(own.events()).count("aten::sum"))

    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(CommandKind.PROFILE, steps=10)
        script.steps(after)
        thread = threading.Thread(target=other)
        thread.start()
        while thread.is_alive():
            script.step()
        script.steps(20)
        with profile(activities=CPU) as own:
            script.step()
    assert (counts, names(own.events()).count("aten::linear")) == ([1], 1)
    refused(attached, request, BEGAN)


def test_a_scheduled_profile_of_our_own_run_gives_way_too(tmp_path: Path) -> None:
    run, counts = SteppedRun(tmp_path, profile_at="20"), []
    own = profile(
        activities=CPU,
        schedule=schedule(wait=3, warmup=2, active=2, repeat=0),
        on_trace_ready=lambda one: counts.append(names(one.events()).count("ProfilerStep*")),
    )
    with own:
        run.run(60, own.step)
    run.close()
    (row,) = run.journal.of(ProfileRow)
    assert isinstance(row, ProfileRow)
    assert BEGAN in row.message or IS_ON in row.message
    assert len(counts) == 8


def test_closing_restores_the_entries_of_the_profiler(tmp_path: Path) -> None:
    def entries() -> list[object]:
        kind = profiler.profile
        return [kind._prepare_trace, kind._start_trace, profiler.emit_nvtx.__enter__]

    before = entries()
    run = SteppedRun(tmp_path)
    assert all(ours is not torchs for ours, torchs in zip(entries(), before, strict=True))
    run.close()
    assert entries() == before
