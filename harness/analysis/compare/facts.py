"""The facts of a run that a comparison reads, and the named figures over them."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from harness import words
from harness.analysis.effect.windows import SteadyStep
from harness.analysis.memory.waterfall import Waterfall
from harness.analysis.profiles import ProfilePart
from harness.analysis.timing.phases import Timing


class ProfileKinds(NamedTuple):
    """Time by kind of work of a run's newest complete profile; the times are sums over `steps`."""

    first_step: int
    steps: int
    # True: kernels on the device's clock; False: operators on the CPU.
    is_on_device: bool
    wall_ns: int | None
    parts: Sequence[ProfilePart]


class RunFacts(NamedTuple):
    """One run in a comparison. None: not measured."""

    run_id: str
    name: str
    state: str
    is_simulated: bool
    device: str | None
    versions: Mapping[str, Any]
    # The settings in effect for the most steps.
    settings: Mapping[str, Any]
    # How many times the settings changed while the run was live.
    changes: int
    # The first and the last step under those settings, which times are of; None before the first step.
    span: tuple[int, int] | None
    # The number of steps in the log.
    steps: int
    timing: Timing | None
    # Steady-state steps, in order; of a long run every n-th.
    steady: Sequence[SteadyStep]
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    # Mean of the last losses; NaN where one of them is.
    final_loss: float | None
    duration_s: float | None
    profile: ProfileKinds | None
    # The breakdown of the newest memory sample.
    memory: Waterfall | None
    # The number of samples that all compared runs trained on, and the mean loss of the last of these.
    equal_samples: float | None = None
    equal_loss: float | None = None
    # The script and its arguments; None for a model of the catalog.
    script: str | None = None

    @property
    def samples_per_step(self) -> float | None:
        """Mean number of samples of the steady-state steps; None where none has a known number."""
        sizes = [step.samples for step in self.steady if step.samples]
        return sum(sizes) / len(sizes) if sizes else None

    @property
    def change_note(self) -> str | None:
        """A sentence on the steps that the times are of; None where the settings did not change."""
        if not self.changes or self.span is None:
            return None
        first, last = map(words.count, self.span)
        times = words.plural(self.changes, "time")
        return (
            f"The settings of {self.name} changed {times}; its times are of steps {first} to {last}, "
            "under the settings used for the most steps."
        )


class Better(StrEnum):
    """The direction in which a figure is better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(StrEnum):
    """The base unit of a figure."""

    NANOSECONDS = "ns"
    SECONDS = "s"
    BYTES = "bytes"
    PER_SECOND = "1/s"
    SHARE = "share"
    COUNT = "count"
    NONE = ""


class NamedFigure(NamedTuple):
    """A figure of a run by the name that a gate uses."""

    name: str
    label: str
    unit: Unit
    better: Better
    read: Callable[[RunFacts], float | None]

    def text(self, value: float | None) -> str:
        """Return a value as text."""
        return _TEXTS[self.unit](value)


_TEXTS: Mapping[Unit, Callable[[float | None], str]] = {
    Unit.NANOSECONDS: words.fine_duration,
    Unit.SECONDS: lambda value: words.duration(None if value is None else 1e9 * value),
    Unit.BYTES: words.size,
    Unit.PER_SECOND: lambda value: words.fine_rate(value, "").replace(" /", "/"),
    Unit.SHARE: lambda value: words.percent(None if value is None else 100 * value),
    Unit.COUNT: words.count,
    Unit.NONE: words.figure,
}


def _step(run: RunFacts, percentile: str) -> float | None:
    if run.timing is None or run.timing.cpu is None:
        return None
    value: float = getattr(run.timing.cpu.step, percentile)
    return value


def _timed(run: RunFacts, name: str) -> float | None:
    value: float | None = None if run.timing is None else getattr(run.timing, name)
    return value


_FIGURES = (
    NamedFigure("step_time", "step time, median", Unit.NANOSECONDS, Better.LOWER, lambda r: _step(r, "p50")),
    NamedFigure("step_time_p95", "step time, p95", Unit.NANOSECONDS, Better.LOWER, lambda r: _step(r, "p95")),
    NamedFigure(
        "samples_per_s",
        "samples per second",
        Unit.PER_SECOND,
        Better.HIGHER,
        lambda r: _timed(r, "samples_per_s"),
    ),
    NamedFigure(
        "tokens_per_s",
        "tokens per second",
        Unit.PER_SECOND,
        Better.HIGHER,
        lambda r: _timed(r, "tokens_per_s"),
    ),
    NamedFigure("mfu", "MFU", Unit.SHARE, Better.HIGHER, lambda r: _timed(r, "mfu")),
    NamedFigure(
        "peak_allocated", "peak allocated", Unit.BYTES, Better.LOWER, lambda r: r.peak_allocated_bytes
    ),
    NamedFigure("peak_reserved", "peak reserved", Unit.BYTES, Better.LOWER, lambda r: r.peak_reserved_bytes),
    NamedFigure("final_loss", "final loss", Unit.NONE, Better.LOWER, lambda r: r.final_loss),
    NamedFigure(
        "loss_at_equal_samples", "loss at equal samples", Unit.NONE, Better.LOWER, lambda r: r.equal_loss
    ),
    NamedFigure("duration", "duration", Unit.SECONDS, Better.LOWER, lambda r: r.duration_s),
    NamedFigure("steps", "steps", Unit.COUNT, Better.NEITHER, lambda r: float(r.steps)),
)
# By name, in the order of tables.
FIGURES: Mapping[str, NamedFigure] = {figure.name: figure for figure in _FIGURES}
