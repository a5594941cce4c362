"""Refill of the CPU's heap after a trim, which is no leak.

Setting a memory cap trims the heap: the pages of its holes are returned to the system, and the process's
resident memory falls. It rises again as steps touch the holes, while the process's data, which a cap limits,
stays the same.
"""

from harness.analysis.leak.growth import DOUBTFUL_Z, RISING, GrowthJudge, Judgment
from harness.records.memory import LeakVerdict

# Minimum ratio of the slope of the process's data to that of its resident memory.
LEAST_SHARE = 0.5


class Refill:
    """Separates growth of resident memory outside live objects from refilled holes.

    Growth above the highest level before a change of settings counts, and so does growth of the data itself.
    """

    def __init__(self) -> None:
        self._data = GrowthJudge()
        self._resident_bytes: int | None = None
        self._earlier_bytes: int | None = None

    def restart(self) -> None:
        """Begin again after a change of settings, which may have trimmed the heap."""
        self._data.restart()
        levels = (level for level in (self._earlier_bytes, self._resident_bytes) if level is not None)
        self._earlier_bytes = max(levels, default=None)

    def add_resident(self, resident_bytes: int | None) -> None:
        """Add the resident memory outside live objects."""
        if resident_bytes is not None:
            self._resident_bytes = resident_bytes

    def add_data(self, step: int, data_bytes: int | None) -> None:
        """Add the data outside live objects, resident or not, up to a constant; None without a cap."""
        self._data.add(step, data_bytes)

    def without(self, judgment: Judgment) -> Judgment:
        """Return the verdict on resident memory: no more than "watch" where only refilled holes grow, or
        where that is not known yet. Shared memory, no data, looks the same up to the earlier level."""
        if judgment.verdict not in RISING or judgment.trend is None or not self._data.samples:
            return judgment
        if self._resident_bytes is None or self._earlier_bytes is None:
            return judgment
        if self._resident_bytes > self._earlier_bytes:
            return judgment
        data = self._data.judge().trend
        if data is None:
            return judgment._replace(verdict=LeakVerdict.WATCH)
        grows = data.z > DOUBTFUL_Z and data.slope >= LEAST_SHARE * judgment.trend.slope
        return judgment if grows else judgment._replace(verdict=LeakVerdict.WATCH)
