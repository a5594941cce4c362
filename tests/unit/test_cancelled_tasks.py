"""A training in an asyncio task."""

import asyncio

from harness.attach.ending import ending_of
from harness.records.run import RunState


def test_the_end_of_a_cancelled_task_is_no_failure() -> None:
    ending = ending_of(asyncio.CancelledError(), 3)
    assert (ending.error, ending.state) == (None, RunState.STOPPED)
    assert ending.message == "Stopped as its asyncio task was cancelled, which Ctrl-C does too."
