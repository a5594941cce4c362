"""Test what happens where a script records the allocator's history itself: its record goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.device.testing.allocation_history import FakeMemoryHistory
from harness.records.run import AckRow, CommandKind, CommandState, EventRow
from harness.tracking.history import CudaHistory
from harness.watch.capture.hunting import LeakHunt
from tests.leak_factories import a_leak
from tests.train_factories import SteppedRun, a_command

pytestmark = pytest.mark.slow


class Bench(SteppedRun):
    """A run on a GPU whose allocator's history the test switches."""

    def __init__(self, captures: Path) -> None:
        self.torch = FakeMemoryHistory()
        super().__init__(captures, history=CudaHistory(self.torch, self.torch.is_enabled))

    @property
    def script_events(self) -> int:
        return len(self.torch._snapshot()["device_traces"][0])

    def events(self, label: str) -> list[EventRow]:
        return [event for event in self.journal.events if event.label == label]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    result = Bench(tmp_path / "captures")
    result.run(6)
    result.torch._record_memory_history("all", max_entries=100_000)
    result.torch.record(1000)
    yield result
    assert (result.torch.enabled, result.script_events) == ("all", 1000)
    result.close()
    assert (result.torch.enabled, result.script_events) == ("all", 1000)


def test_a_snapshot_is_refused(bench: Bench) -> None:
    bench.inbox.put(a_command(CommandKind.SNAPSHOT))
    bench.run(10)
    (ack,) = bench.journal.of(AckRow)
    assert ack.state is CommandState.REJECTED
    assert ack.message.startswith("The script records the allocator's history itself")


def test_the_hunt_for_a_leak_is_refused(bench: Bench) -> None:
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak(), None)
    bench.run(10)
    (event,) = bench.events("leak hunt refused")
    assert "The script records the allocator's history itself" in event.message


def test_the_setting_memory_history_has_no_effect_and_an_event_says_so_once(bench: Bench) -> None:
    bench.inbox.put(a_command(payload='{"memory_history": true}'))
    bench.run(10)
    (event,) = bench.events("no allocation history")
    assert event.message.startswith("The setting memory_history has no effect. The script records")


def test_a_snapshot_is_taken_once_the_script_has_ended_its_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "captures")
    bench.torch._record_memory_history("all")
    bench.run(6)
    bench.torch._record_memory_history(None)
    for command_id in ("first", "second"):
        bench.inbox.put(a_command(CommandKind.SNAPSHOT, command_id=command_id))
        bench.run(12)
        assert bench.torch.enabled is None
    assert [ack.state for ack in bench.journal.of(AckRow)] == [CommandState.APPLIED] * 2
    bench.close()


def test_a_record_that_the_script_begins_after_one_of_the_watch_is_the_scripts(tmp_path: Path) -> None:
    torch_history = FakeMemoryHistory()
    history = CudaHistory(torch_history, torch_history.is_enabled)
    history.follow()
    assert not history.is_foreign()
    torch_history._record_memory_history(None)
    assert not history.is_foreign()
    torch_history._record_memory_history("state")
    assert history.is_foreign()
