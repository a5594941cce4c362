"""The end of quiet steps: plain steps (`harness.attach.plain_step`) after which nothing but their row is due.

A step is quiet if, at its end, no action between two steps is due, nothing is requested, and no memory is
read. Everything it touches is in this one object, and what others need to know only once the steps are no
longer quiet is theirs then (`PlainObservation`): between two operations of a training each object and each
function of this package has to come from memory.
"""

from harness.attach.numbering import StepUnderWay
from harness.attach.plain_step import PlainStep
from harness.watch.inbox import Inbox
from harness.watch.memory import MemoryColumns
from harness.watch.rank_waits import NO_WAITS, RankWaits
from harness.watch.steps import Steps


class QuietSteps:
    """Ends quiet steps, one after the other. Used on the training thread.

    Attributes:
        end_ns: the end of the newest step.
        until_ns, until_step: the first moment and the first step that may not be quiet.
        columns: the last columns of their rows, see `Recorder.columns`.
        rank_waits: measures the waits for other ranks; None in a run of one process.
    """

    __slots__ = (
        "_clock_ns",
        "_inbox",
        "_plain",
        "_progress",
        "_put",
        "_step_finished",
        "_under_way",
        "columns",
        "end_ns",
        "rank_waits",
        "until_ns",
        "until_step",
    )

    def __init__(self, plain: PlainStep, under_way: StepUnderWay, inbox: Inbox, steps: Steps) -> None:
        self._plain = plain
        self._under_way = under_way
        self._inbox = inbox
        self._progress = steps.context.progress
        self._put = steps.recorder.pending.append
        self._step_finished = steps.controller.step_finished
        self._clock_ns = steps.timer.clock_ns
        self.end_ns = self.until_ns = self.until_step = 0
        self.columns: tuple[MemoryColumns, int, int] = steps.recorder.columns
        self.rank_waits: RankWaits | None = None

    def end(self) -> bool:
        """End the step under way, all of whose events have happened, if it is quiet; return whether it is."""
        end_ns, under_way, inbox = self._clock_ns(), self._under_way, self._inbox
        step = under_way.ended + 1
        is_quiet = end_ns < self.until_ns and step < self.until_step
        if not is_quiet or inbox.commands or inbox.stop_message is not None:
            return False
        plain, progress = self._plain, self._progress
        times_ns = (self.end_ns, *plain.times_ns, end_ns)
        plain.times_ns.clear()
        self.end_ns = end_ns
        under_way.ended = step
        if plain.is_recorded:
            loss, (samples, tokens) = plain.loss, plain.sizes
            if under_way.logged_loss is not None:
                loss, under_way.logged_loss = float(under_way.logged_loss), None
            progress.last_step, progress.times_ns = step, times_ns
            memory, version, flags = self.columns
            samples = plain.samples or samples or 0
            waits = NO_WAITS if self.rank_waits is None else self.rank_waits.take()
            self._put((step, times_ns, None, loss, samples, tokens, waits, memory, version, flags))
        elif progress.unobserved_ns is not None:
            progress.unobserved_ns.append(end_ns)
        self._step_finished(step)
        return True
