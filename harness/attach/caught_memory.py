"""Out-of-memory errors of a script that catches them and goes on, and updates that it lets fail."""

from contextlib import suppress

from harness import words
from harness.analysis.oom.error import read_error
from harness.attach.plain_observation import PlainObservation
from harness.attach.updates import updates_under_way
from harness.errors import text_of
from harness.watch.oom.errors import is_out_of_memory

_SEEN = "_stepscope_seen"


class CaughtMemoryErrors:
    """Notes that memory ran out, and warns once the script goes on or ends. Keeps no error: its frames hold
    the activations of the failed step.

    Attributes:
        is_waiting: whether memory ran out since the newest call of a model in a step that is not plain.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._place = ""
        self._requested_bytes: int | None = None
        self._recorded: set[str] = set()
        # Errors that were seen since the newest reading of the memory.
        self._seen = 0

    def follow(self, observation: PlainObservation) -> None:
        """Warn also of failed requests of which only the allocator knows."""
        observation.steps.memory.on_failed = lambda number: self._counted(observation, number)

    def failed(self, error: BaseException, place: str) -> None:
        """`place`, such as "the forward pass", raised `error`, which the script may catch."""
        # An error also passes the models around the one that failed.
        if not is_out_of_memory(error) or hasattr(error, _SEEN):
            return
        with suppress(AttributeError):  # An error whose attributes are fixed counts more than once.
            setattr(error, _SEEN, True)
        self._seen += 1
        if not self.is_waiting:
            self.is_waiting, self._place = True, place
            self._requested_bytes = read_error(text_of(error)).requested_bytes

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

    def check_update(self, observation: PlainObservation) -> None:
        """The script goes on, and an update has not ended: unless this call is a part of it, as by its
        closure, it has failed. Its error is not known: torch calls no hook for one."""
        if any(updates_under_way()):
            return
        observation.leave_plain_step()
        observation.tracker.is_updating = False
        if not self._may_record("update"):
            return
        step = words.count(observation.under_way.number)
        observation.warn(
            "update failed, caught",
            f"The optimizer's update of step {step} did not finish: the script caught its error and went on. "
            "Weights and the optimizer's state may be updated in part. Later ones are not recorded.",
        )

    def _counted(self, observation: PlainObservation, number: int) -> None:
        """The allocator has counted so many failed requests since the reading before."""
        unseen, self._seen = number - self._seen, 0
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
        requested = self._requested_bytes
        size = "" if requested is None else f" The request was for {words.size(requested)}."
        step = words.count(observation.under_way.number)
        where = "of" if self._place.endswith("pass") else "at"
        observation.warn(
            "out of memory, caught",
            f"Memory ran out in {self._place} {where} step {step}; the script {reaction}.{size}{note}",
        )

    def _may_record(self, kind: str) -> bool:
        if kind in self._recorded:
            return False
        self._recorded.add(kind)
        return True
