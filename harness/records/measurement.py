"""Rows about measurements of a change of settings: the plan, its blocks of steps, and its end."""

from enum import StrEnum
from typing import Any, NamedTuple

from harness.files.plain_json import json_object

# As in harness.watch.measuring, which the page must not import: a block's least steps and seconds, and those
# after a switch.
BLOCK = (30, 0.5)
SWITCH = (5, 0.1)
NO_MEASUREMENT = (
    "Measurements are not available in a run of several processes: their blocks end by each process's own "
    "clock. Measure the setting in a run of one process."
)


class Arm(StrEnum):
    """The two sides of a measurement."""

    # The settings in effect when it began.
    A = "A"
    # The changed ones.
    B = "B"


class MeasurementEnd(StrEnum):
    """The way a measurement ended."""

    COMPLETED = "completed"
    # By a person, before the last pair.
    STOPPED = "stopped"
    # A person, or the run itself, changed settings in the middle.
    CHANGED = "changed"
    # The changed settings could not be applied.
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    # The run ended in the middle.
    RUN_ENDED = "run_ended"


class MeasurementRow(NamedTuple):
    """The plan of a measurement. `before` and `after` are the values of the changed settings, as JSON
    objects. Its number counts from 1 in the run."""

    number: int
    step: int
    t_ns: int
    command_id: str
    source: str
    before: str
    after: str
    # Pairs of blocks to be measured at most, see `judgment_pairs`.
    pairs: int
    # 1: the change is kept if it is faster.
    keeps_if_better: int

    @property
    def keep_command_id(self) -> str:
        """The id of the command that keeps the change."""
        return f"keep-{self.command_id}"


class MeasurementBlockRow(NamedTuple):
    """One block of steps under the settings of one arm, or a part of one. Pairs, and the blocks or parts of
    each, count from 1 in the order of time. The steps right after the switch, before `first_step`, are not
    part of it."""

    measurement: int
    pair: int
    position: int
    arm: str
    first_step: int
    last_step: int
    # Start of the first step, and end of the last.
    began_ns: int
    t_ns: int
    settings_version: int
    # Cumulative energy of the device at the start and the end; None without a meter.
    began_energy_j: float | None
    energy_j: float | None


class MeasurementEndRow(NamedTuple):
    """The end of a measurement before `step`, with the reason as one sentence."""

    measurement: int
    step: int
    t_ns: int
    state: str
    message: str


# Fewer pairs give no interval of use.
LEAST_PAIRS = 8
DEFAULT_PAIRS = 64
MOST_PAIRS = 400
_LEAST_JUDGED_PAIRS = 16


def judgment_pairs(pairs: int) -> tuple[int, ...]:
    """Return after how many pairs a measurement of at most `pairs` is judged: after a quarter and half of
    them, unless those are too few, and after all. It ends with the first conclusive result."""
    return (*(part for part in (pairs // 4, pairs // 2) if part >= _LEAST_JUDGED_PAIRS), pairs)


class MeasureRequest(NamedTuple):
    """The payload of a MEASURE command: the settings of arm B, and how to measure them, in at most `pairs`
    pairs of blocks."""

    settings: dict[str, Any]
    pairs: int = DEFAULT_PAIRS
    # Whether the change is kept if it is faster.
    keep_if_better: bool = False

    @classmethod
    def from_json(cls, payload: str) -> "MeasureRequest":
        """Read a payload. Raises ValueError with the reason."""
        values = json_object(payload)
        settings, pairs = values.get("settings"), values.get("pairs", DEFAULT_PAIRS)
        if not isinstance(settings, dict) or not settings:
            raise ValueError("There is nothing to measure: give name=value.")
        if type(pairs) is not int or not LEAST_PAIRS <= pairs <= MOST_PAIRS:
            raise ValueError(f"pairs is {pairs!r}; give a number from {LEAST_PAIRS} to {MOST_PAIRS}.")
        return cls(settings, pairs, values.get("keep_if_better") is True)


class ConclusiveRequest(NamedTuple):
    """The payload of an END_MEASUREMENT command by the judge: the measurement of this number is conclusive
    with this many pairs."""

    measurement: int
    pairs: int

    @classmethod
    def from_json(cls, payload: str) -> "ConclusiveRequest | None":
        """Read a payload; None if it is that of a person, who ends whatever is in progress."""
        values = json_object(payload)
        measurement, pairs = values.get("measurement"), values.get("pairs")
        return cls(measurement, pairs) if type(measurement) is int and type(pairs) is int else None


class BlockSums(NamedTuple):
    """Sums over the recorded steps of a block; None: not measured. Device times are there only if all steps
    have them."""

    steps: int
    samples: int
    wall_ns: int
    device_ns: int | None
    # Of the finite losses; `losses` is their number.
    loss: float | None
    losses: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    # Allocations retried after emptying the cache.
    retries: int
    # Steps under the profiler, or tracked for a snapshot.
    recorded_steps: int


def block_s(step_s: float) -> float:
    """Return the duration of a block of such steps, with its transition."""
    return sum(max(steps * step_s, least_s) for steps, least_s in (BLOCK, SWITCH))


def expected_s(step_s: float, pairs: int) -> float:
    """Return the duration of a measurement in which steps take as long as now: besides the pairs it has one
    block that warms up. Interruptions, and longer steps of arm B, add to it."""
    return (2 * pairs + 1) * block_s(step_s)
