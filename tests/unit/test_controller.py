"""Test what people ask of a live run is carried out between two steps, and always answered."""

import json
from typing import Any

import pytest

from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.errors import DeviceError, SettingError
from harness.records.run import AmpMode, CommandKind, CommandState, EventKind, RunState, StepFlag
from harness.watch.boundary import TRANSITION_STEPS, WARM_UP_STEPS
from harness.watch.controller import expire
from harness.watch.inbox import Inbox
from harness.watch.live_settings import CAP_AFTER_STEPS
from tests.train_factories import Clock, Watched, a_command, a_device, raising

SETTLED = WARM_UP_STEPS + 1


class Bench(Watched):
    """A controller with everything it touches at hand."""

    def request(self, kind: str, step: int = SETTLED, payload: str = "{}", command_id: str = "c1") -> bool:
        self.inbox.put(a_command(kind, payload, command_id))
        return self.controller.proceed(step)

    def set(self, step: int = SETTLED, **values: Any) -> bool:
        return self.request(CommandKind.SET, step, json.dumps(values))

    @property
    def answer(self) -> tuple[str, str]:
        (ack,) = self.journal.acks
        return ack.state, ack.message


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_setting_is_applied_at_the_next_step_and_written_down_everywhere(bench: Bench) -> None:
    assert bench.set(batch_size=16)
    assert bench.answer == (CommandState.APPLIED, "Batch size 8 → 16 (loader rebuilt).")
    assert bench.journal.acks[0].step == SETTLED
    assert bench.workload.settings.batch_size == 16
    assert bench.workload.next_batch()[0].shape[0] == 16
    (row,) = bench.journal.settings
    assert (row.version, row.step, row.command_id) == (2, SETTLED, "c1")
    assert json.loads(row.changed) == {"batch_size": 16}
    assert json.loads(row.settings)["batch_size"] == 16
    (event,) = bench.journal.events
    assert (event.kind, event.label, event.command_id) == (EventKind.SETTING, "batch 16", "c1")
    assert json.loads(event.detail) == {"from": {"batch_size": 8}, "to": {"batch_size": 16}, "version": 2}
    assert bench.marks.settings_version == 2


def test_several_settings_in_one_request_are_one_change(bench: Bench) -> None:
    bench.set(batch_size=4, amp="bf16")
    assert bench.marks.settings_version == 2
    assert bench.journal.events[0].label == "batch 4, AMP bf16"


@pytest.mark.parametrize("workers", [0, 1])
def test_prefetching_without_workers_is_said_to_have_no_effect(bench: Bench, workers: int) -> None:
    bench.set(prefetch_factor=4, num_workers=workers, amp="bf16")
    state, message = bench.answer
    assert state == CommandState.APPLIED
    remark = " prefetch_factor has no effect without loader workers: set num_workers too."
    assert message.endswith(remark) != bool(workers)


def test_steps_after_a_change_are_transition_and_then_plain(bench: Bench) -> None:
    flags = []
    for step in range(1, SETTLED + TRANSITION_STEPS + 2):
        if step == SETTLED:
            bench.inbox.put(a_command(payload='{"batch_size": 4}'))
        bench.controller.proceed(step)
        flags.append(bench.marks.flags)
    assert flags[:WARM_UP_STEPS] == [StepFlag.WARM_UP] * WARM_UP_STEPS
    assert flags[WARM_UP_STEPS:-2] == [StepFlag.TRANSITION] * TRANSITION_STEPS
    assert flags[-2:] == [0, 0]


def test_a_change_during_warm_up_prolongs_it(bench: Bench) -> None:
    bench.controller.proceed(1)
    bench.set(step=WARM_UP_STEPS, batch_size=4)
    bench.controller.proceed(WARM_UP_STEPS + TRANSITION_STEPS - 1)
    assert bench.marks.flags == StepFlag.WARM_UP
    bench.controller.proceed(WARM_UP_STEPS + TRANSITION_STEPS)
    assert bench.marks.flags == 0


def test_asking_for_what_is_so_already_changes_nothing(bench: Bench) -> None:
    bench.set(batch_size=8)
    assert bench.answer == (CommandState.APPLIED, "These values are already in effect; nothing changed.")
    assert (bench.journal.settings, bench.journal.events) == ([], [])
    assert bench.marks.settings_version == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"batch_sise": 16}', "did you mean 'batch_size'"),
        ('{"batch_size": 0}', "batch_size cannot be 0; allowed: at least 1"),
        ('{"batch_size": "many"}', "batch_size cannot be 'many'"),
        ('{"learning_rate": NaN}', "learning_rate cannot be nan"),
        ('{"model": "cnn"}', "Model cannot change while a run goes on"),
        ('{"seed": 1, "batch_size": 4}', "Seed cannot change while a run goes on"),
        ('{"amp": "fp16"}', "amp cannot be 'fp16' on Test CPU; it supports: off, bf16."),
        ('{"pin_memory": true}', "Pinned memory needs a GPU"),
        ('{"nvtx": true}', "needs a GPU"),
        ("{batch_size: 4}", "The request is not JSON"),
        ("", "The request is not JSON"),
        ("[" * 100_000, "The request is not JSON"),
        ("9" * 5_000, "The request is not JSON"),
        ("[1, 2]", "not an object of settings"),
        ("null", "not an object of settings"),
        ('"batch_size"', "not an object of settings"),
        ('{"batch_size": [4]}', "batch_size cannot be [4]"),
    ],
)
def test_what_cannot_be_is_rejected_with_a_sentence_and_training_goes_on(
    bench: Bench, payload: str, words: str
) -> None:
    before = bench.workload.settings
    assert bench.request(CommandKind.SET, payload=payload)
    state, message = bench.answer
    assert state == CommandState.REJECTED
    assert words in message
    assert bench.workload.settings == before
    assert not bench.journal.settings
    assert bench.marks.flags == 0


def test_an_unknown_kind_of_command_is_rejected_by_name(bench: Bench) -> None:
    assert bench.request("dance")
    assert bench.answer == (CommandState.REJECTED, "This Stepscope knows no command 'dance'.")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("mkldnn: could not create a primitive\nat line 3"), "could not create a primitive"),
        (RuntimeError(), "RuntimeError"),
        (OSError("No space left on device"), "No space left on device"),
        (MemoryError(), "MemoryError"),
        (DeviceError("The device is gone."), "The device is gone."),
    ],
)
def test_what_fails_on_the_way_is_rejected_and_training_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr(bench.workload, "reconfigure", raising(error))
    assert bench.set(batch_size=4)
    state, message = bench.answer
    assert state == CommandState.REJECTED
    assert words in message
    assert "\n" not in message


def test_fp16_is_accepted_where_the_device_can() -> None:
    bench = Bench(a_device(FAKE_FACTS))
    bench.set(amp="fp16")
    assert bench.answer[0] == CommandState.APPLIED
    assert bench.workload.settings.amp is AmpMode.FP16


def test_several_commands_between_two_steps_are_carried_out_in_order(bench: Bench) -> None:
    for number, size in enumerate((4, 0, 16)):
        bench.inbox.put(a_command(payload=json.dumps({"batch_size": size}), command_id=f"c{number}"))
    assert bench.controller.proceed(SETTLED)
    assert [(ack.command_id, ack.state) for ack in bench.journal.acks] == [
        ("c0", CommandState.APPLIED),
        ("c1", CommandState.REJECTED),
        ("c2", CommandState.APPLIED),
    ]
    assert [row.version for row in bench.journal.settings] == [2, 3]
    assert bench.workload.settings.batch_size == 16


def test_the_limit_of_steps_moves_while_the_run_goes_on() -> None:
    bench = Bench(max_steps=10)
    assert bench.set(step=10, max_steps=None)
    assert bench.controller.proceed(11)
    assert bench.request(CommandKind.SET, 12, '{"max_steps": 12}', "c2")
    assert not bench.controller.proceed(13)


def test_a_limit_below_the_steps_already_taken_ends_the_run(bench: Bench) -> None:
    assert not bench.set(step=500, max_steps=10)
    assert bench.answer[0] == CommandState.APPLIED
    assert bench.controller.outcome == (RunState.FINISHED, "Took 499 steps; the limit is 10.")


def test_a_stop_ends_the_run_before_the_next_step(bench: Bench) -> None:
    assert not bench.request(CommandKind.STOP)
    assert bench.answer == (CommandState.APPLIED, "Stopping.")
    assert bench.controller.outcome == (RunState.STOPPED, "Stopped by request from the test.")


def test_what_comes_after_a_stop_expires(bench: Bench) -> None:
    bench.inbox.put(a_command(CommandKind.STOP))
    bench.inbox.put(a_command(payload='{"batch_size": 4}', command_id="late"))
    assert not bench.controller.proceed(SETTLED)
    bench.progress.last_step, bench.clock.now_ns = SETTLED, 7
    expire(bench.inbox, bench.context)
    late = bench.journal.acks[1]
    assert (late.command_id, late.state, late.t_ns) == ("late", CommandState.EXPIRED, 7)
    assert "ended" in late.message
    assert bench.workload.settings.batch_size == 8


def test_a_signal_ends_the_run_with_its_own_reason(bench: Bench) -> None:
    bench.inbox.stop("Stopped by SIGTERM.")
    bench.inbox.stop("Stopped by SIGINT.")
    assert not bench.controller.proceed(1)
    assert bench.controller.outcome == (RunState.STOPPED, "Stopped by SIGTERM.")


class ScriptedInbox(Inbox):
    """While the run waits, plays the next act of a script each time; the clock moves on by one second."""

    def __init__(self, clock: Clock, acts: list[Any]) -> None:
        super().__init__()
        self._clock = clock
        self._acts = acts

    def wait(self, timeout_s: float) -> None:
        self._clock.now_ns += 1_000_000_000
        act = self._acts.pop(0)
        if isinstance(act, str):
            self.stop(act)
        elif act is not None:
            self.put(act)


def a_paused(acts: list[Any], **values: Any) -> Bench:
    clock = Clock()
    return Bench(now_ns=clock, inbox=ScriptedInbox(clock, acts), **values)


def test_a_paused_run_answers_commands_and_goes_on_when_resumed() -> None:
    change = a_command(payload='{"batch_size": 4}', command_id="c2")
    bench = a_paused([None, change, a_command(CommandKind.RESUME, command_id="c3")])
    assert bench.request(CommandKind.PAUSE)
    assert [ack.message for ack in bench.journal.acks][::2] == ["Paused.", "Resumed."]
    assert bench.journal.states == [RunState.PAUSED, RunState.RUNNING]
    assert bench.workload.settings.batch_size == 4
    assert bench.marks.flags == StepFlag.TRANSITION
    assert not bench.controller.is_paused


def test_a_pause_does_not_count_against_the_runs_time() -> None:
    bench = a_paused([None, None, a_command(CommandKind.RESUME)], max_seconds=2)
    assert bench.request(CommandKind.PAUSE)
    bench.clock.now_ns += 1_999_999_999
    assert bench.controller.proceed(SETTLED)
    bench.clock.now_ns += 1
    assert not bench.controller.proceed(SETTLED + 1)


@pytest.mark.parametrize("end", ["Stopped by SIGTERM.", a_command(CommandKind.STOP, command_id="c2")])
def test_a_paused_run_can_be_stopped(end: Any) -> None:
    bench = a_paused([None, end])
    assert not bench.request(CommandKind.PAUSE)
    assert bench.controller.outcome is not None
    assert bench.controller.outcome.state is RunState.STOPPED


def test_pausing_twice_and_resuming_what_runs_is_harmless(bench: Bench) -> None:
    assert bench.request(CommandKind.RESUME)
    assert bench.journal.states == []
    assert bench.marks.flags == 0
    twice = a_paused([a_command(CommandKind.PAUSE, command_id="c2"), a_command(CommandKind.RESUME)])
    assert twice.request(CommandKind.PAUSE)
    assert twice.journal.states == [RunState.PAUSED, RunState.RUNNING]


def test_emptying_the_cache_says_what_it_gave_back(bench: Bench) -> None:
    bench.device.allocator.allocate(64 << 20)
    bench.device.allocator.free(64 << 20)
    assert bench.request(CommandKind.EMPTY_CACHE)
    state, message = bench.answer
    assert (state, message) == (CommandState.APPLIED, "Gave back 80.0 MiB of reserved memory.")
    (event,) = bench.journal.events
    assert (event.kind, event.label) == (EventKind.EMPTY_CACHE, "empty_cache()")
    assert json.loads(event.detail)["freed_bytes"] == 80 << 20
    assert bench.marks.flags == StepFlag.TRANSITION


def test_emptying_a_cache_that_is_not_there_is_rejected() -> None:
    bench = Bench(FakeDevice(a_device().facts._replace(can_trim=False)))
    bench.request(CommandKind.EMPTY_CACHE)
    assert bench.answer == (CommandState.REJECTED, "Test CPU has no cache to empty.")


def test_a_cap_on_the_cpu_waits_until_the_run_is_warm() -> None:
    bench = Bench(memory_cap_gib=1.0)
    for step in range(1, CAP_AFTER_STEPS + 1):
        bench.controller.proceed(step)
        assert bench.device.allocator.limit_bytes == 8 << 30
    bench.controller.proceed(CAP_AFTER_STEPS + 1)
    assert bench.device.allocator.limit_bytes == 1 << 30


def test_a_cap_asked_for_in_the_first_steps_is_refused_until_it_is_safe(bench: Bench) -> None:
    bench.set(step=1, memory_cap_gib=1.0)
    state, message = bench.answer[:2]
    assert state == CommandState.REJECTED
    assert "send the request again in a moment" in message
    bench.controller.proceed(CAP_AFTER_STEPS + 1)
    assert bench.device.allocator.limit_bytes == 8 << 30


def test_what_a_start_would_refuse_is_refused_live(bench: Bench) -> None:
    bench.set(channels_last=True)
    state, message = bench.answer[:2]
    assert state == CommandState.REJECTED
    assert "channels_last" in message


def test_a_cap_that_the_system_refuses_leaves_everything_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.device, "cap_memory", raising(ValueError("not allowed to raise maximum limit")))
    bench.controller.proceed(CAP_AFTER_STEPS + 1)
    bench.set(memory_cap_gib=1.0, batch_size=4)
    assert bench.answer[0] == CommandState.REJECTED
    assert bench.workload.settings.batch_size != 4
    assert bench.workload.settings.memory_cap_gib is None


def test_a_cap_is_changed_and_lifted_while_the_run_goes_on(bench: Bench) -> None:
    bench.controller.proceed(CAP_AFTER_STEPS + 1)
    bench.set(memory_cap_gib=2.0)
    assert bench.device.allocator.limit_bytes == 2 << 30
    bench.request(CommandKind.SET, SETTLED + 1, '{"memory_cap_gib": null}', "c2")
    assert bench.device.allocator.limit_bytes == 8 << 30


@pytest.mark.parametrize(
    ("cap_gib", "sentence"),
    [
        (2.0, "was 1.50 GiB: the cap leaves 512 MiB above it."),
        (1.0, "was 1.50 GiB, 512 MiB more than the cap: steps as large as that one run out of memory."),
    ],
)
def test_a_new_cap_is_compared_with_the_highest_peak(bench: Bench, cap_gib: float, sentence: str) -> None:
    bench.controller.proceed(CAP_AFTER_STEPS + 1)
    live_bytes = bench.device.allocator.allocated_bytes
    bench.memory.restart(0)
    bench.device.allocator.allocate((3 << 29) - live_bytes)
    bench.device.allocator.free((3 << 29) - live_bytes)
    bench.memory.step_ended(10**9, 10**8)
    bench.set(memory_cap_gib=cap_gib)
    assert bench.answer[0] == CommandState.APPLIED
    assert bench.answer[1].endswith(f" The highest peak since the last change {sentence}")


def test_a_cap_below_what_is_held_is_rejected_and_nothing_else_changes(bench: Bench) -> None:
    bench.controller.proceed(SETTLED)
    bench.device.allocator.allocate(256 << 20)
    bench.set(memory_cap_gib=0.1, batch_size=4)
    state, message = bench.answer
    assert state == CommandState.REJECTED
    assert "the smallest cap that works now is" in message
    assert bench.workload.settings.batch_size == 8
    assert bench.workload.settings.memory_cap_gib is None
    assert bench.workload.next_batch()[0].shape[0] == 8


def test_a_cap_too_small_to_begin_with_ends_the_run_with_the_sentence() -> None:
    bench = Bench(memory_cap_gib=0.1)
    bench.device.allocator.allocate(256 << 20)
    bench.controller.proceed(1)
    with pytest.raises(SettingError, match="smallest cap"):
        bench.controller.proceed(CAP_AFTER_STEPS + 1)


def test_a_wait_ends_as_soon_as_something_comes_in_or_came_in_before() -> None:
    inbox = Inbox()
    inbox.put(a_command())
    inbox.stop("enough")
    inbox.wait(60.0)
    inbox.wait(0.0)
