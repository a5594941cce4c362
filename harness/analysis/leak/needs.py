"""Transient memory of a run's steps that grows: because inputs grow, or because steps copy what accumulates.

Where inputs grow, retained memory may have grown with them and level off with them. A tensor that each step
replaces by a larger one grows for good, and exists twice while it is copied.
"""

from harness.analysis.leak.growth import DOUBTFUL_Z, SURE_Z, GrowthJudge, Judgment
from harness.analysis.leak.headroom import NO_COPY, Copy
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakSeries, LeakVerdict

# Minimum ratio of the slopes of transient and of retained memory if inputs may grow.
LEAST_NEEDS = 0.5
# The ratio where each step copies what has accumulated is 1. Where inputs grow, activations do much faster
# than what outlives the step.
COPIED = 0.75, 1.25
# Minimum share of what the forward pass needs now that it has gained, if inputs grow.
LEAST_GAIN = 0.35
# Minimum slope of the memory at the end of the forward pass if inputs grow, as a share of a leak's slope.
LEAST_FORWARD = 0.1
# The same for holes and for the process outside live objects: larger tensors leave larger holes each time.
LEAST_FORWARD_FOR_HOLES = 0.04


class StepNeeds:
    """Follows the transient memory of steps."""

    def __init__(self) -> None:
        self._peaks, self._forward = GrowthJudge(), GrowthJudge()
        self._newest_forward_bytes = 0
        self._copied_step = self._copied_bytes = 0
        self._retained_step, self._retained_slope = 0, 0.0

    def restart(self) -> None:
        """Begin again after a change of settings."""
        self._peaks.restart()
        self._forward.restart()

    def add_peak(self, step: int, transient_bytes: int) -> None:
        """Add the peak of a step above its end."""
        self._peaks.add(step, transient_bytes)

    def add_forward_end(self, step: int, forward_end_bytes: int) -> None:
        """Add the memory at the end of a forward pass, relative to that at the end of its step."""
        self._forward.add(step, forward_end_bytes)
        self._newest_forward_bytes = forward_end_bytes

    def set_copy(self, step: int, copied_bytes: int) -> None:
        """Set the size, after `step`, of a tensor that steps replace by larger ones; 0: there is none."""
        self._copied_step, self._copied_bytes = step, copied_bytes

    def set_retained(self, step: int, bytes_per_step: float) -> None:
        """Set what each step up to `step` retained, as a hunt has found; 0: nothing."""
        self._retained_step, self._retained_slope = step, bytes_per_step

    def without_growth(self, series: LeakSeries, judgment: Judgment) -> Judgment:
        """Replace the verdict "leak" by "watch" if inputs may grow, unless a hunt during the growth has found
        that each step retains as much: that does not level off with the inputs."""
        if judgment.verdict is not LeakVerdict.LEAK:
            return judgment
        slope = 0.0 if judgment.trend is None else judgment.trend.slope
        is_found = self._retained_step >= judgment.since_step and self._retained_slope > LEAST_NEEDS * slope
        if series is LeakSeries.ALLOCATED and is_found:
            return judgment
        if series is not LeakSeries.WORKERS and self._forward_grows(
            LEAST_FORWARD * slope if series is LeakSeries.ALLOCATED else LEAST_FORWARD_FOR_HOLES * slope
        ):
            return judgment._replace(verdict=LeakVerdict.WATCH)
        needs = self._needs()
        if needs is None:
            return judgment
        is_explained = needs.slope >= LEAST_NEEDS * slope and not self._is_copy(series, slope, needs.slope)
        return judgment._replace(verdict=LeakVerdict.WATCH) if is_explained else judgment

    def are_growing(self, slope: float) -> bool:
        """Return whether steps need more and more memory, beside growth of retained memory by `slope`. Also
        where that is far less than the slope: its holes may take what is left."""
        needs = self._needs()
        return self._forward_grows(0.0) or (needs is not None and needs.slope >= LEAST_NEEDS * slope)

    def copy(self, series: LeakSeries, judgment: Judgment, transient_bytes: int) -> Copy:
        """Return the copy that steps make of what has accumulated: as found by a hunt during its growth, or
        shown by peaks that grow twice as fast, the largest by `transient_bytes`."""
        leak = judgment.trend
        if series is not LeakSeries.ALLOCATED or leak is None or leak.slope <= 0:
            return NO_COPY
        if self._copied_bytes and self._copied_step >= judgment.since_step:
            grown_bytes = leak.slope * (judgment.last_step - self._copied_step)
            return Copy(round(self._copied_bytes + grown_bytes), leak.slope)
        needs = self._needs()
        if needs is None or not self._is_copy(series, leak.slope, needs.slope):
            return NO_COPY
        is_whole = COPIED[0] <= needs.slope / leak.slope <= COPIED[1]
        return Copy(transient_bytes, needs.slope) if is_whole else NO_COPY

    def _forward_grows(self, least_slope: float) -> bool:
        """Return whether the forward pass needs far more memory than at first, as with inputs of growing
        resolution, by at least `least_slope` per step. Libraries cache something for each new shape, beyond
        the tensors."""
        forward = self._forward.judge()
        if forward.trend is None or forward.trend.z <= SURE_Z or forward.risen_bytes is None:
            return False
        is_large = forward.risen_bytes >= LEAST_GAIN * self._newest_forward_bytes > 0
        return is_large and forward.trend.slope >= least_slope

    def _needs(self) -> Trend | None:
        """Return the trend of transient memory if it grows for certain."""
        needs = self._peaks.judge().trend
        return needs if needs is not None and needs.z > SURE_Z else None

    def _is_copy(self, series: LeakSeries, slope: float, needs_slope: float) -> bool:
        """Return whether transient memory that grows by `needs_slope` is a copy of live memory that grows by
        `slope`. Growing inputs also show at the end of the forward pass."""
        if series is not LeakSeries.ALLOCATED or slope <= 0:
            return False
        forward = self._forward.judge().trend
        if forward is not None:
            return forward.z <= DOUBTFUL_Z or forward.slope < LEAST_FORWARD * slope
        return COPIED[0] <= needs_slope / slope <= COPIED[1]
