"""Any loss comes back from the log unchanged: through recorder, writer and reader."""

import math
import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.records.floats import decode_float
from harness.records.run import EventKind, EventRow
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from harness.watch.context import Marks
from harness.watch.memory import MemoryWatch
from harness.watch.readback import LossReader
from harness.watch.recorder import Recorder
from tests.examples import examples
from tests.store_factories import a_run
from tests.train_factories import a_device, some_times

FLOATS = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


def alike(ours: float | None, theirs: float) -> bool:
    return ours is not None and (ours == theirs or (math.isnan(ours) and math.isnan(theirs)))


@examples(0.25)
@given(st.lists(FLOATS, min_size=1, max_size=80), st.sampled_from([0, 16, 128]))
def test_losses_survive_the_whole_way(losses: list[float], slots: int) -> None:
    reader = LossReader(torch.zeros(slots) if slots else None)
    events: list[EventRow] = []
    recorder = Recorder(MemoryWatch(a_device()), Marks(), events.append, zero_ns=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite3"
        with LogWriter(path, a_run(), recorder.collect, lambda: 0, poll_s=0.01) as writer:
            for step, loss in enumerate(losses, 1):
                ticket = reader.take(torch.tensor(loss))
                recorder.step_ended(step, some_times(step * 1000), None, ticket, 1, None)
                if slots and step % slots == 0:
                    assert writer.flush(10.0)
        with LogReader(path) as log:
            rows = log.last_steps(len(losses))
            first = log.series(1, len(losses), 100, ["loss"])
    assert [row.step for row in rows] == list(range(1, len(losses) + 1))
    read = [decode_float(row.loss, row.loss_state) for row in rows]
    assert all(alike(ours, theirs) for ours, theirs in zip(read, losses, strict=True))
    broken = sum(not math.isfinite(loss) for loss in losses)
    assert sum(row[first.columns.index("non_finite_sum")] for row in first.rows) == broken
    assert bool(broken) == any(event.kind == EventKind.NON_FINITE_LOSS for event in events)
