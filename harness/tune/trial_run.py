"""One warm run that compares settings in randomized pairs of blocks."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.errors import LogError, RunStateError, StepscopeError
from harness.files.plain_json import json_object
from harness.records.measurement import MeasurementEnd
from harness.records.run import CommandKind, CommandState, RunState
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import RunSummary, Supervisor
from harness.supervisor.measuring import Measurement, read_measurement
from harness.tune.rows import (
    Comparison,
    Trial,
    TrialOutcome,
    trial_figures,
)

SOURCE = "tune"
_POLL_S = 0.2
# Steps of the baseline before the first comparison.
_WARM_STEPS = 30
_WARM_S = 2.0
_ANSWER_S = 60.0
# A run that trains nothing for this long counts as failed.
_START_S = 300.0
_OUT_OF_MEMORY = "Memory ran out."


class Watching(NamedTuple):
    """The caller's side of a comparison: `should_end` is polled, `show` takes the finished pairs."""

    should_end: Callable[[], bool]
    show: Callable[[int], None]


class Interrupted(Exception):  # noqa: N818  (no error)
    """The caller ended a comparison before it had a result."""


class WarmRun:
    """A live run of the baseline in which settings are compared."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, baseline: Settings) -> None:
        self._supervisor = supervisor
        self.folder = folder
        self._baseline = baseline.model_dump(mode="json")
        self._context: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """True when the run has ended."""
        return self._supervisor.status(self.folder).state.is_over

    @property
    def host(self) -> str | None:
        """The machine that trains it; None without a log."""
        try:
            with LogReader(self.folder.log) as reader:
                return reader.run().host
        except LogError:
            return None

    def wait_until_placed(self, should_end: Callable[[], bool]) -> float:
        """Wait until a machine trains the run, or its end; return the seconds. Raises Interrupted."""
        began_s = time.monotonic()
        while self.host is None and not self.is_over:
            if should_end():
                raise Interrupted
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def wait_until_warm(self, should_end: Callable[[], bool]) -> RunSummary:
        """Wait for the steady state. Raises StepscopeError when the run ends before, Interrupted."""
        deadline_s = time.monotonic() + _START_S
        warm_s = 0.0
        while True:
            run = self._supervisor.summary(self.folder)
            if run.status.state.is_over:
                raise StepscopeError(f"The baseline cannot be trained: {run.status.message}")
            steps = run.steps or 0
            if run.step_ns is not None and steps >= _WARM_STEPS and time.monotonic() >= warm_s:
                return run
            warm_s = warm_s if steps else time.monotonic() + _WARM_S
            if should_end():
                raise Interrupted
            if time.monotonic() > deadline_s:
                raise StepscopeError(f"The baseline took no {_WARM_STEPS} steps within {_START_S:.0f} s.")
            time.sleep(_POLL_S)

    def compare(self, comparison: Comparison, estimated_s: float, watching: Watching) -> Trial:
        """Compare in pairs of blocks. Raises Interrupted when the caller ended it without a result, and
        RunStateError when the run has ended."""
        began_s = time.monotonic()

        def failed(message: str, outcome: TrialOutcome = TrialOutcome.FAILED) -> Trial:
            duration_s = time.monotonic() - began_s
            return empty_trial(comparison, outcome, message, duration_s, estimated_s)

        problem = self._enter(comparison.context)
        if problem:
            return failed(problem)
        payload = {"settings": dict(comparison.changes), "pairs": comparison.pairs}
        command_id = self._supervisor.send(self.folder, CommandKind.MEASURE, payload, source=SOURCE)
        problem = self._rejection(command_id)
        # The answer to a measurement that began is replaced when memory runs out in it.
        if problem and not self._has_begun(command_id):
            return failed(problem)
        measurement = self._follow(command_id, watching)
        figures = trial_figures(measurement.effect)
        end = measurement.end
        if end is None and self.is_over:
            status = self._supervisor.status(self.folder)
            is_oom = status.state in (RunState.OUT_OF_MEMORY, RunState.KILLED)
            return failed(status.message, TrialOutcome.OUT_OF_MEMORY if is_oom else TrialOutcome.FAILED)
        if end is not None and end.state == MeasurementEnd.OUT_OF_MEMORY:
            return failed(_OUT_OF_MEMORY, TrialOutcome.OUT_OF_MEMORY)
        if not figures:
            if end is not None and end.state == MeasurementEnd.STOPPED:
                raise Interrupted
            return failed(measurement.outcome)
        return Trial(
            comparison.stage,
            comparison.context,
            comparison.changes,
            TrialOutcome.MEASURED,
            measurement.pairs,
            figures,
            self._samples(measurement),
            measurement.effect.sentence,
            tuple(measurement.reasons),
            time.monotonic() - began_s,
            estimated_s,
        )

    def close(self) -> None:
        """Stop the run and wait for its end. Idempotent."""
        if not self.is_over:
            try:
                self._supervisor.stop(self.folder, source=SOURCE)
            except RunStateError:
                return  # It has ended meanwhile.

    def _enter(self, context: Mapping[str, Any]) -> str:
        """Put the settings of both arms into effect; return the reason if that fails, else ""."""
        values = {name: context.get(name, self._baseline[name]) for name in {**self._context, **context}}
        if dict(context) == self._context or not values:
            return ""
        command_id = self._supervisor.send(self.folder, CommandKind.SET, values, source=SOURCE)
        self._context = dict(context)
        return self._rejection(command_id)

    def _rejection(self, command_id: str) -> str:
        """Wait for the answer to a command; return the reason for a rejection, else ""."""
        deadline_s = time.monotonic() + _ANSWER_S
        while (answer := self._supervisor.answer(self.folder, command_id)) is None:
            if self.is_over:
                raise RunStateError("The run ended in the middle.")
            if time.monotonic() > deadline_s:
                return f"The run did not answer within {_ANSWER_S:.0f} s."
            time.sleep(_POLL_S)
        return "" if answer.state == CommandState.APPLIED else answer.message

    def _has_begun(self, command_id: str) -> bool:
        with LogReader(self.folder.log) as reader:
            return any(plan.command_id == command_id for plan in reader.measurements.plans())

    def _follow(self, command_id: str, watching: Watching) -> Measurement:
        """Wait for the end. The blocks are judged only then, because that takes the processor's time."""
        is_ending = False
        while True:
            is_over = self.is_over
            with LogReader(self.folder.log) as reader:
                plans = reader.measurements.plans()
                number = next((p.number for p in plans if p.command_id == command_id), None)
                if number is not None:
                    watching.show(reader.measurements.pairs(number))
                    if is_over or reader.measurements.end(number) is not None:
                        measurement = read_measurement(reader, number, is_over)
                        assert measurement is not None
                        return measurement
            if is_over:
                raise RunStateError("The run ended in the middle.")
            if not is_ending and watching.should_end():
                is_ending = True
                self._supervisor.send(self.folder, CommandKind.END_MEASUREMENT, source=SOURCE)
            time.sleep(_POLL_S)

    def _samples(self, measurement: Measurement) -> tuple[int, int]:
        """Return the samples of a step in either arm."""
        with LogReader(self.folder.log) as reader:
            history = reader.settings_history()
        values = json_object(history[-1].settings) if history else {}
        before = {**values, **measurement.before}
        after = {**values, **measurement.after}
        return step_samples(before), step_samples(after)


def empty_trial(
    comparison: Comparison, outcome: TrialOutcome, message: str, duration_s: float, estimated_s: float
) -> Trial:
    """Return a trial without figures."""
    return Trial(
        comparison.stage,
        comparison.context,
        comparison.changes,
        outcome,
        0,
        (),
        (0, 0),
        message,
        (),
        duration_s,
        estimated_s,
        comparison.is_fresh,
    )


def step_samples(values: Mapping[str, Any]) -> int:
    """Return the samples of an optimizer step."""
    return int(values.get("batch_size", 1)) * int(values.get("grad_accumulation", 1))
