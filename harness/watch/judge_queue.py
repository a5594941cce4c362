"""The measurements to judge: put by the training thread, taken by the sampler's."""

from dataclasses import dataclass, field


@dataclass
class JudgeQueue:
    """Measurements that may be conclusive by now, and completed ones that keep what is better.

    Attributes:
        numbers: their numbers, the oldest first; the sampler's thread removes them.
        is_judging: whether a judge computes; set by the sampler's thread.
    """

    numbers: list[int] = field(default_factory=list)
    is_judging: bool = False

    @property
    def is_busy(self) -> bool:
        """Return whether a judge computes, or is to be started."""
        return self.is_judging or bool(self.numbers)
