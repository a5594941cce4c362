"""Runs the comparisons of a tune, one after the other, and writes its state after each."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from harness.closing import Closing
from harness.errors import RunStateError, StepscopeError
from harness.predict.answer import Target, limit_of
from harness.settings import Settings
from harness.settings.spec import change
from harness.store.folder import RunFolder
from harness.store.liveness import Liveness
from harness.supervisor import Supervisor
from harness.tune.folder import TuneFolder
from harness.tune.fresh import compare_fresh
from harness.tune.planning import check_plan, check_result, estimated_s, next_comparison, unmeasured
from harness.tune.rows import Comparison, Trial, TrialOutcome, TrialProgress, Tune, TuneState
from harness.tune.trial_run import Interrupted, WarmRun, Watching, empty_trial
from harness.words import clip, plural, span

# Of the remaining budget, for predicting the largest batch.
_PREDICTION_SHARE = 0.2
# Warm runs that end during a comparison, before the tune ends.
_MOST_LOST = 5
_LONGEST_PREFIX = 40

# Returns the largest batch predicted to fit within a time limit; None without a limit or a prediction.
FindLargestBatch = Callable[[Settings, Target, float], int | None]


class TuneInterface(NamedTuple):
    """The caller's side of a tune: `should_stop` is polled, `show` takes each new state."""

    should_stop: Callable[[], bool]
    show: Callable[[Tune], None]


class Tuner(Closing):
    """Runs one tune. Its state is in `folder`; the runs it starts are ordinary runs of the home."""

    def __init__(
        self,
        supervisor: Supervisor,
        folder: TuneFolder,
        tune: Tune,
        interface: TuneInterface,
        find_largest_batch: FindLargestBatch,
    ) -> None:
        """A tune that is running already was started by another process, and may have a request to stop.

        Raises RunStateError when another process runs this tune.
        """
        try:
            self._liveness = Liveness.hold(folder.alive)
        except BlockingIOError:
            raise RunStateError(f"The tune {folder.tune_id} is in progress in another process.") from None
        if tune.state is not TuneState.RUNNING:
            folder.stop.unlink(missing_ok=True)
        self._supervisor = supervisor
        self._folder = folder
        self._interface = interface
        self._find_largest_batch = find_largest_batch
        self._spent_before_s = tune.spent_s
        self._began_s = time.monotonic()
        self._warm: WarmRun | None = None
        self._lost = 0
        self.tune = tune._replace(state=TuneState.RUNNING, message="", progress=None)

    def run(self) -> Tune:
        """Run the comparisons that the budget has time for; return the final state.

        Raises StepscopeError when the baseline cannot be trained, and UsageError when the budget is too short
        for one comparison.
        """
        self._save()
        try:
            with suppress(Interrupted):
                self._prepare()
                while not self._should_end() and (comparison := next_comparison(self.tune)) is not None:
                    self._add(self._compare(comparison))
            self._finish()
        except StepscopeError as error:
            self._save(state=TuneState.FAILED, message=str(error), progress=None)
            raise
        finally:
            if self._warm is not None:
                self._warm.close()
        return self.tune

    def close(self) -> None:
        """Release the tune's lock. Idempotent."""
        self._liveness.close()

    def _prepare(self) -> None:
        """Start the baseline, and learn the device, the duration of a step and the largest batch."""
        warm = self._warm_run()
        if self.tune.engine is not None:
            # The time in which a run waits for another machine is not the tune's.
            self._began_s += warm.wait_until_placed(self._is_stopped)
            self._save(host=warm.host)
        run = warm.wait_until_warm(self._should_end)
        assert run.device is not None
        assert run.step_ns is not None
        self._save(device=run.device, step_s=run.step_ns / 1e9)
        if self.tune.largest_batch is None:
            target, baseline = Target.of(run.device), self.tune.baseline
            limit_s = _PREDICTION_SHARE * self._remaining_s
            largest = self._find_largest_batch(baseline, target, limit_s)
            self._save(largest_batch=largest or None, limit_words=limit_of(baseline, target)[1])
        check_plan(self.tune)

    def _warm_run(self) -> WarmRun:
        if self._warm is None or self._warm.is_over:
            baseline = change(
                self.tune.baseline,
                {
                    "max_steps": None,
                    "max_seconds": None,
                    "profile_at": None,
                    "hunt_leaks": False,
                    "oom_retries": 100,
                },
            )
            folder = self._start(baseline)
            self._warm = WarmRun(self._supervisor, folder, baseline)
        return self._warm

    def _start(self, settings: Settings) -> RunFolder:
        folder = self._supervisor.start(self._run_name(), settings, remote=self.tune.remote)
        self._save(runs=(*self.tune.runs, folder.run_id))
        return folder

    def _run_name(self) -> str:
        number = len(self.tune.runs) + 1
        return clip(f"tune-{self._folder.tune_id}", _LONGEST_PREFIX) + f"-{number}"

    def _compare(self, comparison: Comparison) -> Trial:
        estimate_s = estimated_s(self.tune, comparison)

        def show(pair: int) -> None:
            progress = TrialProgress(comparison.title, pair, comparison.pairs, began_unix_s, estimate_s)
            if progress != self.tune.progress:
                self._save(progress=progress)

        began_unix_s = time.time()
        show(0)
        watching = Watching(self._should_end, show)
        if comparison.is_fresh:
            return self._compare_fresh(comparison, estimate_s, watching)
        warm = self._warm_run()
        warm.wait_until_warm(self._should_end)
        try:
            return warm.compare(comparison, estimate_s, watching)
        except RunStateError:
            self._lost += 1
            if self._lost > _MOST_LOST:
                raise
            status = self._supervisor.status(warm.folder)
            return empty_trial(comparison, TrialOutcome.FAILED, status.message, 0.0, estimate_s)

    def _compare_fresh(self, comparison: Comparison, estimate_s: float, watching: Watching) -> Trial:
        """Compare runs in fresh processes. The warm run ends before, because it would compete with them."""
        if self._warm is not None:
            self._warm.close()

        return compare_fresh(
            self._supervisor, self._start, self.tune.baseline, comparison, estimate_s, watching
        )

    def _add(self, trial: Trial) -> None:
        self._save(trials=(*self.tune.trials, trial), progress=None)

    def _finish(self) -> None:
        """Write the end. Raises UsageError when the budget was too short for one comparison."""
        self._save(progress=None)
        left = len(unmeasured(self.tune))
        rest = f" Without a comparison: {plural(left, 'setting')}." if left else ""
        if self._is_stopped():
            state, message = TuneState.STOPPED, f"Stopped.{rest}"
        else:
            check_result(self.tune)
            state, message = TuneState.COMPLETED, f"Completed in {span(self.tune.spent_s)}.{rest}"
        self._save(state=state, message=message)

    @property
    def _remaining_s(self) -> float:
        return self.tune.budget_s - self._spent_s

    @property
    def _spent_s(self) -> float:
        return self._spent_before_s + time.monotonic() - self._began_s

    def _should_end(self) -> bool:
        return self._is_stopped() or self._remaining_s <= 0

    def _is_stopped(self) -> bool:
        return self._interface.should_stop() or self._folder.stop.exists()

    def _save(self, **changes: Any) -> None:
        """Change the state and write it."""
        self.tune = self.tune._replace(spent_s=self._spent_s, **changes)
        self._folder.write(self.tune)
        self._interface.show(self.tune)
