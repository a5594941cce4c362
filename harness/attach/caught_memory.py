"""Out-of-memory errors of a script that catches them and goes on, and updates that it lets fail."""

import sys
from contextlib import suppress
from threading import get_ident
from typing import NamedTuple

import torch

from harness import words
from harness.analysis.oom.error import read_error
from harness.attach.guard import ScriptGuard
from harness.attach.plain_observation import PlainObservation
from harness.attach.updates import follow_errors, left_update, updates_under_way
from harness.errors import text_of
from harness.watch.oom.errors import is_out_of_memory
from harness.watch.training import Replaced

_SEEN = "_stepscope_seen"


class _Failure(NamedTuple):
    """A failure for lack of memory, without its error."""

    requested_bytes: int | None


class CaughtMemoryErrors:
    """Notes that memory ran out, and warns once the script goes on or ends. Keeps no error: its frames hold
    the activations of the failed step.

    Attributes:
        is_waiting: whether memory ran out since the newest call of a model in a step that is not plain.
    """

    def __init__(self, guard: ScriptGuard) -> None:
        self._guard = guard
        self._observation: PlainObservation | None = None
        self.is_waiting = False
        self._place = ""
        self._requested_bytes: int | None = None
        self._recorded: set[str] = set()
        # Errors that were seen since the newest reading of the memory.
        self._seen = 0
        # Since an update has failed: what follows the errors of later ones, and that of the newest one.
        self._following: Replaced | None = None
        self._update_failure: _Failure | None = None
        self._is_after_update = False

    def follow(self, observation: PlainObservation) -> None:
        """Warn also of failed requests of which only the allocator knows."""
        self._observation = observation
        observation.steps.memory.on_failed = lambda number: self._counted(observation, number)

    def failed(self, error: BaseException, place: str) -> None:
        """`place`, such as "the forward pass", raised `error`, which the script may catch."""
        if self._is_first_sight(error) and not self.is_waiting:
            self.is_waiting, self._place = True, place
            self._requested_bytes = read_error(text_of(error)).requested_bytes

    def early_call_began(self) -> None:
        """A model is called before those of the training are known."""
        if self.is_waiting and self._observation is not None:
            self._guard.run(self.went_on, self._observation)

    def early_call_failed(self, error: BaseException) -> None:
        """Such a call, in the first step or an evaluation before its end, raised `error`."""
        if self._observation is not None:
            self._guard.run(
                self.failed, error, "the forward pass" if torch.is_grad_enabled() else "the evaluation"
            )

    def went_on(self, observation: PlainObservation) -> None:
        """The script calls a model again. The peak of the step is that of the attempt that succeeds."""
        self.is_waiting = False
        observation.steps.memory.restart(1)
        self._record(
            observation, "caught the error and went on", " Later ones of this kind are not recorded."
        )

    def ended(self, observation: PlainObservation, error: BaseException | None) -> None:
        """The script has ended, by `error` if there was one: that of the memory has a report."""
        if error is not None and is_out_of_memory(error):
            return
        observation.steps.memory.count_failures()
        if self.is_waiting:
            self.is_waiting = False
            self._record(observation, "caught the error", "")

    def close(self) -> None:
        """Follow no errors any longer."""
        self._observation = None
        if self._following is not None:
            self._following.remove()

    def check_update(self, observation: PlainObservation) -> None:
        """The script goes on, and an update has not ended: unless this call is a part of it, as by its
        closure, it has failed. torch calls no hook for its error, which is known only while the script
        handles it, or where an earlier update has failed too."""
        if any(updates_under_way()):
            return
        observation.leave_plain_step()
        observation.tracker.is_updating = False
        handled = sys.exception()
        if handled is not None and left_update(handled):
            self._update_raised(handled)
        self._is_after_update = True
        observation.steps.memory.count_failures()
        self._is_after_update = False
        failure, self._update_failure = self._update_failure, None
        if self._following is None:
            self._following = follow_errors(self._error_left)
        if not self._may_record("update" if failure is None else "update without memory"):
            return
        step = words.count(observation.under_way.number)
        partly = "Weights and the optimizer's state may be updated in part."
        if failure is not None:
            observation.warn(
                "out of memory, caught",
                f"Memory ran out in the optimizer's update of step {step}; the script caught the error and "
                f"went on.{_size(failure.requested_bytes)} {partly} Later ones of this kind are not "
                "recorded.",
            )
            return
        observation.warn(
            "update failed, caught",
            f"The optimizer's update of step {step} did not finish: the script caught its error, which is "
            f"not known, and went on. {partly} Of later ones only the first for lack of memory is recorded.",
        )

    def _error_left(self, error: BaseException) -> None:
        if get_ident() == self._guard.thread:
            self._guard.run(self._update_raised, error)

    def _update_raised(self, error: BaseException) -> None:
        """`error` has left an update. Errors of the calls within, as of a closure, are counted already."""
        if self._is_first_sight(error):
            self._update_failure = _Failure(read_error(text_of(error)).requested_bytes)

    def _is_first_sight(self, error: BaseException) -> bool:
        """Count `error` if memory ran out, once: it also passes the models around the one that failed. Return
        whether it counts."""
        if not is_out_of_memory(error) or hasattr(error, _SEEN):
            return False
        with suppress(AttributeError):  # An error with fixed attributes counts more than once.
            setattr(error, _SEEN, True)
        self._seen += 1
        return True

    def _counted(self, observation: PlainObservation, number: int) -> None:
        """The allocator has counted so many failed requests since the reading before."""
        unseen, self._seen = number - self._seen, 0
        if unseen > 0 and self._is_after_update and self._update_failure is None:
            self._update_failure = _Failure(None)
            unseen -= 1
        if unseen <= 0 or not self._may_record("allocator"):
            return
        step = words.count(observation.under_way.number)
        observation.warn(
            "out of memory, caught",
            f"Up to step {step} the allocator refused {words.plural(unseen, 'request')} outside of models, "
            "loaders, the backward pass and the optimizer: the script caught the error, such as one of its "
            "loss, or a library did without that memory, as cuDNN when it tries out kernels. Later ones of "
            "this kind are not recorded.",
        )

    def _record(self, observation: PlainObservation, reaction: str, note: str) -> None:
        if not self._may_record(self._place):
            return
        step = words.count(observation.under_way.number)
        where, size = "of" if self._place.endswith("pass") else "at", _size(self._requested_bytes)
        observation.warn(
            "out of memory, caught",
            f"Memory ran out in {self._place} {where} step {step}; the script {reaction}.{size}{note}",
        )

    def _may_record(self, kind: str) -> bool:
        if kind in self._recorded:
            return False
        self._recorded.add(kind)
        return True


def _size(requested_bytes: int | None) -> str:
    return "" if requested_bytes is None else f" The request was for {words.size(requested_bytes)}."
