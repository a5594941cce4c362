"""A change with a known effect, and its observation."""

import math
from typing import NamedTuple

from harness.analysis.effect import ObservedChange
from tests.bench.effect_runs import Plan


class Outcome(NamedTuple):
    """A change and the observation. `effect` is the share by which the timed work makes a step longer,
    `intended` the share it was planned to, `load` the machine's load average in the run's last five minutes.
    """

    plan: Plan
    load: float
    intended: float
    effect: float
    observed: ObservedChange

    @property
    def name(self) -> str:
        """The run, for a table."""
        beside = ", beside another process" if self.plan.hogs else ""
        return f"{self.plan.settings['model']}, threads: {self.plan.threads}{beside}"

    @property
    def resolution_pct(self) -> float:
        """Changes of the step below this were stated not to be told from none."""
        step = self.observed.step_ns
        return math.nan if step is None else 100 * step.resolution

    @property
    def is_called(self) -> bool:
        """Return whether the verdict says that anything changed."""
        return self.observed.verdict.startswith("Observed")

    @property
    def is_detected(self) -> bool:
        """Return whether the step is said to have changed, in the right direction."""
        step = self.observed.step_ns
        return step is not None and step.is_visible and (step.ratio > 1) == (self.intended > 0)

    @property
    def has_wrong_sign(self) -> bool:
        """Return whether the step is said to have changed in the other direction than it did."""
        step = self.observed.step_ns
        return step is not None and step.is_visible and self.intended != 0 and not self.is_detected

    @property
    def is_covered(self) -> bool:
        """Return whether the interval of the step holds the true effect."""
        step = self.observed.step_ns
        return step is not None and step.low <= 1 + self.effect <= step.high

    def is_of(self, share: float) -> bool:
        """Return whether so much work was added or taken away."""
        return self.intended != 0 and math.isclose(abs(math.log1p(self.intended)), math.log1p(share))
