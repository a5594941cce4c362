"""Ends of a script by a person that are no KeyboardInterrupt."""

import asyncio
import sys

import pytest

from harness.attach.ending import ending_of
from harness.records.run import RunState


def test_the_end_of_a_cancelled_task_is_no_failure() -> None:
    ending = ending_of(asyncio.CancelledError(), 3)
    assert (ending.error, ending.state) == (None, RunState.STOPPED)
    assert ending.message == "Stopped as its asyncio task was cancelled, which Ctrl-C does too."


def test_an_exit_in_the_handler_of_ctrl_c_is_a_stop() -> None:
    """As of Lightning, which exits with 1."""

    def script() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    with pytest.raises(SystemExit) as caught:
        script()
    assert ending_of(caught.value, 3) == (None, RunState.STOPPED, "Stopped by Ctrl-C.")
