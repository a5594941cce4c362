"""Commands to a run in any order: the settings follow a simple model, and every command is answered exactly
once."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.run import CommandKind, CommandRow, CommandState
from harness.train.workload import Workload
from harness.watch.controller import expire
from harness.watch.inbox import Inbox
from harness.watch.live_settings import CAP_AFTER_STEPS
from tests.train_factories import Clock, FakeJournal, a_device, a_workload, open_steps

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.integers(1, 64),
    "amp": st.sampled_from(["off", "bf16"]),
    "grad_accumulation": st.integers(1, 3),
    "learning_rate": st.floats(1e-6, 1.0),
    "empty_cache_every": st.integers(0, 5),
    "activation_checkpointing": st.booleans(),
    "optimizer_impl": st.sampled_from(["auto", "loop", "foreach", "fused"]),
    "max_seconds": st.none() | st.floats(100, 1000),
    "memory_cap_gib": st.none() | st.floats(1, 4),
}
BAD: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.integers(max_value=0) | st.text("abc -", min_size=1),
    "amp": st.sampled_from(["fp16", "fp8", None]),
    "pin_memory": st.just(True),
    "channels_last": st.just(True),
    "model": st.just("cnn"),
    "no_such_setting": st.integers(),
}


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, bool]:
    """A SET's payload, and whether it should be accepted."""
    names = draw(st.lists(st.sampled_from(sorted(GOOD)), min_size=1, max_size=3, unique=True))
    values = {name: draw(GOOD[name]) for name in names}
    is_good = draw(st.booleans())
    if not is_good:
        name = draw(st.sampled_from(sorted(BAD)))
        values[name] = draw(BAD[name])
    return json.dumps(values), is_good


requests = st.one_of(
    changes().map(lambda change: (CommandKind.SET.value, *change)),
    st.sampled_from(["", "[]", "3", "{", '"x"']).map(lambda payload: (CommandKind.SET.value, payload, False)),
    st.just((CommandKind.EMPTY_CACHE.value, "{}", True)),
    st.just((CommandKind.RESUME.value, "{}", True)),
    st.text(max_size=8)
    .filter(lambda kind: kind not in list(CommandKind))
    .map(lambda kind: (kind, "{}", False)),
)
batches = st.lists(st.lists(requests, max_size=3), min_size=1, max_size=6)

WORKLOAD: Workload = a_workload()
START = WORKLOAD.settings


@settings(deadline=None)
@given(batches, st.booleans())
def test_settings_follow_the_model_and_every_command_is_answered_once(
    between_steps: list[list[tuple[str, str, bool]]], ends_with_a_stop: bool
) -> None:
    journal, inbox = FakeJournal(), Inbox()
    WORKLOAD.reconfigure(START)
    steps = open_steps(a_device(), WORKLOAD, journal, now_ns=Clock(), inbox=inbox).steps
    controller, context = steps.controller, steps.context
    expected = START.model_dump(mode="json")
    answers: dict[str, CommandState] = {}
    warm = CAP_AFTER_STEPS + 1
    assert all(controller.proceed(step) for step in range(1, warm + 1))
    step = warm
    for step, request in enumerate(between_steps, warm + 1):
        for kind, payload, is_good in request:
            command_id = f"c{len(answers)}"
            inbox.put(CommandRow(command_id, 1, kind, payload, "the test"))
            answers[command_id] = CommandState.APPLIED if is_good else CommandState.REJECTED
            if is_good and kind == CommandKind.SET:
                expected |= json.loads(payload)
        assert controller.proceed(step)
        assert WORKLOAD.settings.model_dump(mode="json") == expected
    if ends_with_a_stop:
        inbox.put(CommandRow("stop", 1, CommandKind.STOP, "{}", "the test"))
        inbox.put(CommandRow("late", 1, CommandKind.RESUME, "{}", "the test"))
        answers |= {"stop": CommandState.APPLIED, "late": CommandState.EXPIRED}
        assert not controller.proceed(step + 1)
    controller.close()
    expire(inbox, context)
    assert [(ack.command_id, ack.state) for ack in journal.acks] == list(answers.items())
    assert [row.version for row in journal.settings] == list(range(2, 2 + len(journal.settings)))
    if journal.settings:
        assert json.loads(journal.settings[-1].settings) == expected
