"""Rows about the speed of the machine during a run."""

from typing import NamedTuple


class ReferenceRow(NamedTuple):
    """The duration of a fixed piece of work on the training thread, right after `step` ended
    (`harness.watch.reference`)."""

    step: int
    took_ns: int
