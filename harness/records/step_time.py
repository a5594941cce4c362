"""The columns of a step that a comparison of step times needs."""

from typing import NamedTuple


class StepTime(NamedTuple):
    """The columns of `StepRow` that a comparison of step times needs."""

    step: int
    t_ns: int
    step_ns: int
    samples: int
    peak_allocated_bytes: int | None
    settings_version: int
    flags: int
