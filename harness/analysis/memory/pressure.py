"""How close a run is to the memory it can have."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.memory_records import MemorySampleRow
from harness.records import StepRow

# Shares of what the run can have from which on a person should know, and should act. What is left at 97 % of
# a card is less than a convolution's workspace or one more layer's activations usually take.
TIGHT, VERY_TIGHT = 0.92, 0.97


class Level(StrEnum):
    """How much of it is used."""

    CALM = "calm"
    TIGHT = "tight"
    VERY_TIGHT = "very tight"


class Pressure(NamedTuple):
    """The most a run needed lately beside the most it can have, in bytes."""

    needed_bytes: int
    available_bytes: int
    what: str
    """What sets the limit: "cap", "device memory", "host memory"."""

    @property
    def share(self) -> float:
        """Needed over available; above 1 where something else takes what was thought available."""
        return self.needed_bytes / self.available_bytes

    @property
    def level(self) -> Level:
        """Whether it is worth a word."""
        if self.share >= VERY_TIGHT:
            return Level.VERY_TIGHT
        return Level.TIGHT if self.share >= TIGHT else Level.CALM

    @property
    def sentence(self) -> str:
        """What a person should know."""
        needed, available = words.size(self.needed_bytes), words.size(self.available_bytes)
        return (
            f"The last steps needed {needed} of the {available} that this run can have ({self.what}); what "
            "is left is little for a larger batch, a longer text or one more process."
        )


def pressure(
    recent: Sequence[StepRow], sample: MemorySampleRow | None, cap_bytes: int | None, is_cpu: bool
) -> Pressure | None:
    """The pressure on a run's memory, None where it cannot be told.

    Under a cap it is the highest peak of the `recent` steps against the cap. Without one it is, on a GPU,
    that peak against the card less what others and the context hold; on the CPU, where tensors compete with
    the whole machine, the machine's used memory against all of it.
    """
    peaks = [row.peak_allocated_bytes for row in recent if row.peak_allocated_bytes is not None]
    if cap_bytes is not None:
        return Pressure(max(peaks), cap_bytes, "its cap") if peaks else None
    if sample is None or sample.used_bytes is None or not sample.total_bytes:
        return None
    if is_cpu:
        return Pressure(sample.used_bytes, sample.total_bytes, "the machine's memory, used by all processes")
    if not peaks or sample.reserved_bytes is None:
        return None
    others_bytes = max(0, sample.used_bytes - sample.reserved_bytes)
    what = f"the card less {words.size(others_bytes)} held by its context and other processes"
    return Pressure(max(peaks), max(1, sample.total_bytes - others_bytes), what)
