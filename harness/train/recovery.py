"""Recovery from an out-of-memory error within a step: release its memory, apply the policy, and continue
training in the same process.

A failed step leaves two effects: the random numbers that it drew, and the running means of batch
normalization as far as its forward pass came.
"""

import gc
import json
from typing import Any, NamedTuple

import torch

from harness import words
from harness.analysis.oom.report import OomPhase, OomReport, OomVerdict
from harness.errors import StepscopeError
from harness.notices import print_traceback
from harness.records.run import AckRow, CommandState, EventKind, EventRow, Severity
from harness.train.policies import PolicyResult, Refusal, apply_policy
from harness.train.workload import Workload
from harness.watch.live_settings import LiveSettings
from harness.watch.oom.capture import OomCapture
from harness.watch.oom.errors import NoRecoveryError, attempt, is_ambiguous, is_out_of_memory, release_frames
from harness.watch.oom.reporter import OomReporter
from harness.watch.steps import Steps

# Tolerance for "back at the baseline": a share of it or this many bytes, whichever is more. On the CPU
# "allocated" includes Python's own allocations.
BASELINE_SHARE, BASELINE_TOLERANCE_BYTES = 0.05, 8 << 20


class Baselines(NamedTuple):
    """Allocated memory before the failed step, and after its release. `age_ns` is the age of the first at the
    end of the previous step; memory retained by the steps since is not the failed one's."""

    before_bytes: int | None
    after_bytes: int | None
    age_ns: int = 0

    @property
    def tolerance_bytes(self) -> int | None:
        """The tolerated difference."""
        return (
            None
            if self.before_bytes is None
            else max(BASELINE_TOLERANCE_BYTES, int(self.before_bytes * BASELINE_SHARE))
        )

    @property
    def is_back(self) -> bool | None:
        """Return whether the memory was released; None if unknown."""
        if self.before_bytes is None or self.after_bytes is None or self.tolerance_bytes is None:
            return None
        is_back = self.after_bytes <= self.before_bytes + self.tolerance_bytes
        return None if self.age_ns and not is_back else is_back


_IN_TURN = (OomPhase.DATA, OomPhase.COPY, OomPhase.FORWARD, OomPhase.BACKWARD)


def phase_after(laps: int, micro_batches: int) -> OomPhase:
    """Return the current phase after so many phases of a step have ended."""
    if laps < len(_IN_TURN) * micro_batches:
        return _IN_TURN[laps % len(_IN_TURN)]
    return OomPhase.OPTIMIZER if laps == len(_IN_TURN) * micro_batches else OomPhase.TIDYING


class Recovery:
    """Used on the training thread; without a failure there is no overhead."""

    def __init__(self, workload: Workload, live: LiveSettings, steps: Steps, reporter: OomReporter) -> None:
        self._workload = workload
        self._live = live
        self._boundary = steps.boundary
        self._timer = steps.timer
        self._memory = steps.memory
        self._subject = steps.subject
        self._reporter = reporter
        self._device = steps.context.device
        self._journal = steps.context.journal
        self._clock_ns = steps.context.clock_ns
        self._policy = live.current.oom_policy
        self._failed: list[int] = []
        self._recoveries = 0
        self._baselines = Baselines(None, None)

    def capture(self, error: BaseException, step: int) -> OomCapture | None:
        """Return the evidence of `error`, raised within `step`; None if it is not about memory. Call it in
        the handler of `error`; it clears the error's frames."""
        is_certain = is_out_of_memory(error)
        if not is_certain and not is_ambiguous(error):
            return None
        attempt(self._device.lift_cap_for_recovery)
        memory = attempt(self._device.read_memory)
        if not is_certain and not self._memory.has_failures(memory):
            return None
        print_traceback(error)
        phase = phase_after(self._timer.laps, self._workload.micro_batches)
        capture = self._reporter.capture(error, step, phase, memory, self._subject)
        release_frames(error)
        return capture

    def recover(self, capture: OomCapture) -> None:
        """Prepare the run to repeat the step of `capture`. Call it after the handler of the error.

        Raises NoRecoveryError if the run has to end; the report is then written.
        """
        self._policy = self._live.current.oom_policy
        self._baselines = Baselines(
            capture.baseline_bytes, self._free(), self._memory.age_ns(self._timer.end_ns)
        )
        report = self._reporter.explain(capture)
        done = self._remedy(capture, report.verdict)
        if isinstance(done, Refusal):
            self._end(capture, report, done)
        else:
            self._go_on(capture, report, done)

    def step_ended(self, step: int) -> None:
        """Record the end of the first step after a recovery."""
        allocated = words.size(self._memory.baseline_bytes)
        message = f"Step {step:,} completed after memory had run out in it; {allocated} are allocated now."
        detail = json.dumps({"recovery": self._recoveries})
        self._event(EventKind.OOM_RECOVERED, Severity.INFO, step, "recovered", message, detail, None)

    def _free(self) -> int | None:
        """Release the step's memory outside its frames; return the allocated memory. A failed hook keeps its
        graph until the next backward pass, so there is a small one."""
        self._workload.abandon_step()
        attempt(self._small_backward)
        attempt(self._device.synchronize)
        gc.collect()
        attempt(self._device.empty_cache)
        memory = attempt(self._device.read_memory)
        return None if memory is None else memory.allocated_bytes

    def _small_backward(self) -> None:
        weight = torch.ones((), device=self._device.torch_device, requires_grad=True)
        (weight * 1.0).backward()

    def _remedy(self, capture: OomCapture, verdict: OomVerdict) -> PolicyResult | Refusal:
        live, phase = self._live, capture.request.phase
        if phase is OomPhase.WORKER:
            return Refusal(
                "A worker of the data loader ran out of memory, which this process cannot recover from."
            )
        if not capture.are_weights_intact:
            return Refusal(
                "The optimizer was updating weights: some may be updated and some not, so the run ends."
            )
        if self._recoveries >= live.current.oom_retries:
            return Refusal("No recovery is left (oom_retries); the run ends.")
        if phase is OomPhase.OPTIMIZER:
            self._workload.drop_begun_state()
        done = apply_policy(live, self._workload, capture.step, phase, self._failed, verdict)
        if isinstance(done, Refusal):
            return done
        try:
            if live.current.memory_cap_gib is not None:
                live.cap()
        except (StepscopeError, RuntimeError, ValueError, OSError) as error:
            attempt(self._device.lift_cap_for_recovery)
            return Refusal(f"The memory cap could not be set again: {error}")
        return done

    def _go_on(self, capture: OomCapture, report: OomReport, done: PolicyResult) -> None:
        self._recoveries += 1
        self._failed = [] if done.undone is not None else [*self._failed, capture.step]
        command_id = None if done.undone is None else done.undone.command_id
        report = report._replace(outcome=self._outcome(done.outcome))
        self._reporter.file(report)
        if command_id is not None:
            message = f"{done.outcome} Out of memory in step {capture.step:,}: {report.why}"
            self._journal.put(
                AckRow(command_id, CommandState.ROLLED_BACK, capture.step, self._clock_ns(), message)
            )
        detail = json.dumps(self._detail(capture, report))
        self._event(
            EventKind.OOM,
            Severity.WARNING,
            capture.step,
            "out of memory",
            report.sentence,
            detail,
            command_id,
        )
        gc.collect()
        self._boundary.changed(capture.step)

    def _end(self, capture: OomCapture, report: OomReport, refusal: Refusal) -> None:
        had = f" Recoveries before: {self._recoveries:,}." if self._recoveries else ""
        report = report._replace(outcome=self._outcome(refusal.reason + had))
        self._reporter.file(report)
        raise NoRecoveryError(report.sentence, capture.step, json.dumps(self._detail(capture, report)))

    def _outcome(self, text: str) -> str:
        baselines = self._baselines
        if baselines.before_bytes is None or baselines.after_bytes is None or baselines.is_back:
            return text
        more = words.size(baselines.after_bytes - baselines.before_bytes)
        if not baselines.age_ns:
            return f"{text} {more} more than before the step stay allocated."
        return (
            f"{text} The memory of the step that stays allocated is unknown: now it is {more} more than at "
            f"the newest reading, {words.duration(baselines.age_ns)} of training before."
        )

    def _detail(self, capture: OomCapture, report: OomReport) -> dict[str, Any]:
        baselines = self._baselines
        return {
            "error": capture.error,
            "memory": capture.memory and capture.memory._asdict(),
            "device": self._device.facts.name,
            "verdict": report.verdict.value,
            "policy": self._policy.value,
            "recoveries": self._recoveries,
            "level_before": baselines.before_bytes,
            "level_after": baselines.after_bytes,
            "tolerance": baselines.tolerance_bytes,
            "is_back": baselines.is_back,
        }

    def _event(
        self,
        kind: EventKind,
        severity: Severity,
        step: int,
        label: str,
        message: str,
        detail: str,
        command_id: str | None,
    ) -> None:
        row = EventRow(self._clock_ns(), step, kind, severity, label, message, detail, command_id)
        if kind is EventKind.OOM:
            self._journal.put_durable(row)
        else:
            self._journal.put(row)
