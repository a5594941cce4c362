"""Changes that let training continue after it ran out of memory, by the setting `oom_policy`."""

from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.oom.report import OomPhase, OomVerdict
from harness.errors import StepscopeError
from harness.settings.declaration import OomPolicy
from harness.settings.spec import SPECS
from harness.train.workload import Workload
from harness.watch.live_settings import LiveChange, LiveSettings

# Steps after a change in which it counts as the cause: its transition, and as many again.
ROLL_BACK_WITHIN = 10

NEXT_BATCH = "The step is repeated with the next batch; the failed batch is skipped."


_HALVE = "With oom_policy=halve the run would continue with half the batch."
_INSTEAD = {
    OomVerdict.SHARED_MEMORY: "A smaller batch helps: workers pass it on in less shared memory.",
    OomVerdict.HOST: "A smaller batch helps only as far as its samples fill the host's memory.",
    OomVerdict.REFUSED: "A smaller batch helps only if its smaller requests are granted: memory was free.",
    OomVerdict.LEAK: "A smaller batch would not help for long: a leak fills the freed memory.",
    OomVerdict.FRAGMENTATION: "A smaller batch helps only if its tensors fit into the free pieces.",
    OomVerdict.OTHER_PROCESS: "A smaller batch helps as long as the other processes do not grow.",
    OomVerdict.UNLISTED: "A smaller batch helps as long as the memory that is not listed does not grow.",
}


class PolicyResult(NamedTuple):
    """The action, in a sentence; `undone` is the change that was reverted."""

    outcome: str
    undone: LiveChange | None = None


class Refusal(NamedTuple):
    """The reason why nothing could be done, in a sentence."""

    reason: str


def apply_policy(
    live: LiveSettings,
    workload: Workload,
    step: int,
    phase: OomPhase,
    earlier: Sequence[int],
    verdict: OomVerdict,
) -> PolicyResult | Refusal:
    """Apply the policy in effect after `step` ran out of memory in `phase` with the cause `verdict`;
    `earlier` are the steps that failed before. No cap is in effect meanwhile."""
    policy = live.current.oom_policy
    try:
        if (trial := live.trial) is not None:
            undone = live.undo(trial, step, "The measured change is undone: ")
            return PolicyResult(f"{undone.message} {NEXT_BATCH}", trial)
        match policy:
            case OomPolicy.ROLL_BACK:
                return _roll_back(live, step, earlier, verdict)
            case OomPolicy.HALVE:
                return _halve(live, step, verdict)
            case OomPolicy.SKIP:
                if phase is OomPhase.DATA:
                    workload.renew_loader()
                return PolicyResult("The batch is skipped; the step is repeated with the next one.")
            case OomPolicy.STOP:
                return Refusal("The run ends because of oom_policy=stop.")
    except (StepscopeError, RuntimeError, OSError, ValueError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Refusal(f"oom_policy={policy.value} failed: {reason}")


def _roll_back(
    live: LiveSettings, step: int, earlier: Sequence[int], verdict: OomVerdict
) -> PolicyResult | Refusal:
    suspects = [
        change
        for change in live.changes
        if any(SPECS[name].affects_peak or SPECS[name].affects_free_memory for name in change.names)
    ]
    change = suspects[-1] if suspects else None
    if change is None or step - change.step >= ROLL_BACK_WITHIN:
        return Refusal(
            "The run ends: there is no recent change of settings to roll back. "
            f"{_INSTEAD.get(verdict, _HALVE)}"
        )
    if any(failed >= change.step for failed in earlier):
        return Refusal("The run ends: it had already failed after the last change of settings.")
    undone = live.undo(change, step, "Rolled back: ")
    return PolicyResult(f"{undone.message} {NEXT_BATCH}", change)


def _halve(live: LiveSettings, step: int, verdict: OomVerdict) -> PolicyResult | Refusal:
    batch, accumulation = live.current.batch_size, live.current.grad_accumulation
    if batch == 1:
        return Refusal("The batch is a single sample already and cannot be halved.")
    effective, then = batch * accumulation, batch // 2 * accumulation * 2
    values = {"batch_size": batch // 2, "grad_accumulation": accumulation * 2}
    message = live.impose(values, step, "Halved the batch: ").message
    stays = f"The effective batch stays {words.count(effective)}."
    if then != effective:
        stays = (
            f"The effective batch becomes {words.count(then)} instead of {words.count(effective)}, because "
            f"{words.count(batch)} is odd and is rounded down."
        )
    instead = f" {_INSTEAD[verdict]}" if verdict in _INSTEAD else ""
    return PolicyResult(f"{message} {stays} {NEXT_BATCH}{instead}")
