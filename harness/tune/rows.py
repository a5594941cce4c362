"""The state of a tune: its request, its comparisons and their results, as rows of one JSON file."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from harness.analysis.effect.measured import THROUGHPUT, MeasuredEffect, MeasuredFigure, Word
from harness.records.remote import RemoteRequest
from harness.records.run import DeviceFacts
from harness.settings import Settings
from harness.settings.spec import change_title, parse

# Of a comparison of settings that take effect in a live run, and of others.
PEAK_ALLOCATED = "peak allocated"
PEAK_RESERVED = "peak reserved"
# In the name of a time that is not that of a step.
PER_SAMPLE = "per sample"


class Goal(StrEnum):
    """The figure to improve."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"


class TrialStage(StrEnum):
    """The purpose of a comparison."""

    # One setting by itself against the baseline.
    SINGLE = "single"
    # One more setting on top of those adopted so far.
    FORWARD = "forward"
    # The adopted settings with one of them against those without it.
    DROP = "drop"
    # All adopted settings against the baseline.
    TOTAL = "total"
    # The device against the CPU.
    DEVICE = "device"


class TrialOutcome(StrEnum):
    """The end of a comparison."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"


class TuneState(StrEnum):
    """The state of a tune in its file. The process of a running one may be lost."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


class Comparison(NamedTuple):
    """A planned comparison: `context` are changes of the baseline in effect in both arms, `changes` those of
    arm B in addition. `pairs` are pairs of blocks, or of runs where `is_fresh`."""

    stage: TrialStage
    context: Mapping[str, Any]
    changes: Mapping[str, Any]
    pairs: int
    # Each arm in processes of its own, as for settings that cannot change in a live run.
    is_fresh: bool = False

    @property
    def title(self) -> str:
        """The compared change: "AMP bf16", "batch 64 with AMP bf16"."""
        title = change_title(self.changes)
        return f"{title} with {change_title(self.context)}" if self.context else title


class TrialFigure(NamedTuple):
    """One figure under both arms: the effect is a share of arm A's value. None: not available."""

    name: str
    before: float | None
    after: float | None
    effect: float | None
    low: float | None
    high: float | None
    word: Word
    more_pairs: int | None = None

    @classmethod
    def of(cls, figure: MeasuredFigure) -> "TrialFigure":
        """Return the figure of a measured effect."""
        return cls(figure.kind.name, *figure[1:7], figure.more_pairs)


class Trial(NamedTuple):
    """The result of a comparison. The first of `figures` is the time of a step, or of a sample where
    the batch sizes differ; `samples` are those of a step in either arm."""

    stage: TrialStage
    context: Mapping[str, Any]
    changes: Mapping[str, Any]
    outcome: TrialOutcome
    pairs: int
    figures: tuple[TrialFigure, ...]
    samples: tuple[int, int]
    message: str
    # Reasons not to trust it.
    doubts: tuple[str, ...]
    # Wall time of the comparison, and its estimate.
    duration_s: float
    estimated_s: float
    is_fresh: bool = False

    @property
    def title(self) -> str:
        """The compared change, as of a `Comparison`."""
        return Comparison(self.stage, self.context, self.changes, self.pairs).title

    @property
    def main(self) -> TrialFigure | None:
        """The figure of time; None without figures."""
        return self.figures[0] if self.figures else None

    @property
    def sample_ns(self) -> tuple[float, float] | None:
        """The time per sample in either arm, by the main figure; None without one."""
        main = self.main
        if main is None or main.before is None or main.after is None:
            return None
        if PER_SAMPLE in main.name:
            return main.before, main.after
        return main.before / self.samples[0], main.after / self.samples[1]

    def figure(self, name: str) -> TrialFigure | None:
        """Return the figure `name`; None if it was not measured."""
        return next((figure for figure in self.figures if figure.name == name), None)


class TrialProgress(NamedTuple):
    """The comparison in progress."""

    title: str
    pair: int
    pairs: int
    began_unix_s: float
    estimated_s: float


class Tune(NamedTuple):
    """A tune. Times are in seconds; `settings` are the baseline's, as JSON values."""

    tune_id: str
    created_unix_s: float
    settings: Mapping[str, Any]
    goal: Goal
    budget_s: float
    spent_s: float = 0.0
    state: TuneState = TuneState.RUNNING
    message: str = ""
    device: DeviceFacts | None = None
    # Median step of the baseline in steady state.
    step_s: float | None = None
    # The largest batch predicted to fit, and the name of the limit; None without a limit or a prediction.
    largest_batch: int | None = None
    limit_words: str = ""
    trials: tuple[Trial, ...] = ()
    # Ids of the runs it started.
    runs: tuple[str, ...] = ()
    progress: TrialProgress | None = None
    # Names of the settings to compare; empty for all.
    selected: tuple[str, ...] = ()
    # The engine that places its runs on other machines, and the machine that all of them train on, None
    # before the first one. None: here.
    engine: str | None = None
    host: str | None = None

    @property
    def remote(self) -> RemoteRequest | None:
        """The machine on which its next run trains; None: this one."""
        return None if self.engine is None else RemoteRequest(self.engine, host=self.host)

    @property
    def baseline(self) -> Settings:
        """The settings of the baseline. Raises SettingError."""
        return parse(self.settings)

    @property
    def remaining_s(self) -> float:
        """The remaining time of the budget."""
        return max(0.0, self.budget_s - self.spent_s)


def trial_figures(effect: MeasuredEffect) -> tuple[TrialFigure, ...]:
    """Return the figures of a measured effect that have values, the time first."""
    return tuple(TrialFigure.of(figure) for figure in effect.figures if figure.effect is not None)


def is_better(trial: Trial, goal: Goal) -> bool:
    """Return whether arm B is better by its interval: faster, and not slower with all steps counted; or with
    a lower peak."""
    main, peak, rate = trial.main, trial.figure(PEAK_ALLOCATED), trial.figure(THROUGHPUT.name)
    if trial.outcome is not TrialOutcome.MEASURED or main is None:
        return False
    if goal is Goal.MEMORY:
        return peak is not None and peak.word is Word.LESS
    return main.word is Word.FASTER and (rate is None or rate.word is not Word.SLOWER)


def gain(trial: Trial, goal: Goal) -> float:
    """Return the improvement as a share: of samples/s, or of the peak's bytes; minus infinity without a
    figure."""
    figure = trial.figure(PEAK_ALLOCATED) if goal is Goal.MEMORY else trial.main
    if figure is None or figure.effect is None or trial.outcome is not TrialOutcome.MEASURED:
        return float("-inf")
    return -figure.effect if goal is Goal.MEMORY else 1 / (1 + figure.effect) - 1
