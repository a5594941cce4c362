"""Pressure: how much of its available memory a run needs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.records.memory import MemorySampleRow
from harness.records.run import StepRow

# Shares of the available memory from which a run is shown in amber and in red, on every page. 92 % leaves a
# reserve for peaks that vary with the length of inputs; what 97 % of a card leaves is usually less than a
# convolution's workspace or the activations of one more layer.
TIGHT, VERY_TIGHT = 0.92, 0.97


class Level(StrEnum):
    """Level of pressure."""

    CALM = "calm"
    TIGHT = "tight"
    VERY_TIGHT = "very tight"


class Pressure(NamedTuple):
    """Memory needed by the recent steps, and memory available to the run, in bytes."""

    needed_bytes: int
    available_bytes: int
    # Source of the limit, as in "its cap".
    what: str
    # Whether it compares the memory of all processes with that of the machine.
    is_of_machine: bool = False

    @property
    def share(self) -> float:
        """Needed over available; above 1 where something else uses memory counted as available."""
        return self.needed_bytes / self.available_bytes

    @property
    def level(self) -> Level:
        """The level of this pressure."""
        if self.share >= VERY_TIGHT:
            return Level.VERY_TIGHT
        return Level.TIGHT if self.share >= TIGHT else Level.CALM

    @property
    def sentence(self) -> str:
        """The pressure in one sentence."""
        needed, available = words.size(self.needed_bytes), words.size(self.available_bytes)
        return (
            f"The last steps needed {needed} of the {available} available to this run ({self.what}); little "
            "is left for a larger batch, a longer sequence or one more process."
        )


def pressure(
    recent: Sequence[StepRow],
    sample: MemorySampleRow | None,
    cap_bytes: int | None,
    is_cpu: bool,
    process_limit_bytes: int | None = None,
) -> Pressure | None:
    """The pressure on a run's memory; None where it was not measured.

    Under a cap or a limit of the process (`process_limit_bytes` is what it leaves to the run's heap): the
    highest peak of the `recent` steps, relative to the lower of the two. Without one, on a GPU: that peak,
    relative to the card less other processes and the context; on the CPU, where tensors compete with all
    processes: the machine's used memory, relative to its total.
    """
    peaks = [row.peak_allocated_bytes for row in recent if row.peak_allocated_bytes is not None]
    limits = [(cap_bytes, "its cap"), (process_limit_bytes, "under the limit of its process")]
    stated = [(limit_bytes, what) for limit_bytes, what in limits if limit_bytes is not None]
    if stated:
        limit_bytes, what = min(stated)
        return Pressure(max(peaks), max(1, limit_bytes), what) if peaks else None
    if sample is None or sample.used_bytes is None or not sample.total_bytes:
        return None
    if is_cpu:
        what = "the machine's memory, used by all processes"
        return Pressure(sample.used_bytes, sample.total_bytes, what, is_of_machine=True)
    if not peaks or sample.reserved_bytes is None:
        return None
    others_bytes = max(0, sample.used_bytes - sample.reserved_bytes)
    what = f"the card less {words.size(others_bytes)} of its context and other processes"
    return Pressure(max(peaks), max(1, sample.total_bytes - others_bytes), what)
