"""Numbers of a script, read from a device without waiting for it."""

import torch

from harness.attach.numbering import StepUnderWay
from harness.attach.scalars import DeviceReads, ScalarWriter
from harness.records.script import ScalarRow
from harness.watch.readback import LossReader


class FakeEvent:
    """An event that the device reaches when a test says so."""

    is_reached = False

    def record(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


def test_numbers_on_a_device_are_written_once_the_device_has_reached_them() -> None:
    rows: list[ScalarRow] = []
    events: list[FakeEvent] = []

    def open_event() -> FakeEvent:
        events.append(FakeEvent())
        return events[-1]

    writer = ScalarWriter(rows.append, lambda: 7, DeviceReads(LossReader(torch.zeros(8)), open_event))
    writer.write(1, {"loss": torch.tensor(0.5), "lr": 0.1})
    writer.write(2, {"loss": torch.tensor(float("nan"))})
    assert rows == [ScalarRow(1, "lr", 7, 0.1, 0)]
    events[1].is_reached = True
    writer.collect()
    assert len(rows) == 1  # In order: the second waits for the first.
    events[0].is_reached = True
    writer.collect()
    assert rows[1:] == [ScalarRow(1, "loss", 7, 0.5, 0), ScalarRow(2, "loss", 7, None, 1)]
    writer.write(3, {"loss": torch.tensor(0.25)})
    assert len(events) == 2  # Events are used again.


def test_an_event_is_recorded_on_the_stream_of_the_device_with_the_numbers() -> None:
    recorded: list[str] = []

    class StreamEvent(FakeEvent):
        def record(self, *streams: str) -> None:
            recorded.extend(streams)

    reads = DeviceReads(LossReader(torch.zeros(8)), StreamEvent, lambda: "stream of cuda:1")
    ScalarWriter(lambda _row: None, lambda: 7, reads).write(1, {"loss": torch.tensor(0.5)})
    assert recorded == ["stream of cuda:1"]


def test_a_number_belongs_to_the_step_that_ended_until_the_next_one_begins() -> None:
    under_way = StepUnderWay()
    assert under_way.number == 1
    under_way.has_begun = True
    under_way.forward_began(is_training=True)
    under_way.has_begun = under_way.has_trained = True
    assert under_way.number == 1
    under_way.ended, under_way.has_begun, under_way.has_trained = 1, False, False
    assert under_way.number == 1
    under_way.has_begun = True
    assert under_way.number == 2


def test_a_batch_that_is_evaluated_begins_no_step() -> None:
    under_way = StepUnderWay()
    under_way.ended, under_way.has_begun = 5, False
    under_way.has_begun = True
    under_way.forward_began(is_training=False)
    assert under_way.number == 5


def test_a_forward_pass_without_gradients_within_a_step_does_not_end_it() -> None:
    under_way = StepUnderWay()
    under_way.ended, under_way.has_begun = 5, False
    under_way.forward_began(is_training=True)
    under_way.forward_began(is_training=False)
    assert under_way.number == 6
