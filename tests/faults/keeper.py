"""Takes the losses of a run down outside its log, in memory that outlives a kill -9."""

import mmap
from collections.abc import Callable
from pathlib import Path

from harness.device.protocol import StepTicket
from harness.watch.readback import LossTicket
from harness.watch.timing import Times
from tests.faults.curve import COUNT, LOSS, MOST_STEPS


class CurveKeeper:
    """A StepListener that keeps each step's loss in a mapped file."""

    def __init__(self, path: Path, after_step: Callable[[int], None]) -> None:
        """`after_step` is called on the training thread after each step."""
        with path.open("wb+") as file:
            file.truncate(COUNT.size + MOST_STEPS * LOSS.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._after_step = after_step

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """Take the loss down, then the step's number."""
        assert loss is not None
        LOSS.pack_into(self._map, COUNT.size + (step - 1) * LOSS.size, loss() if callable(loss) else loss)
        COUNT.pack_into(self._map, 0, step)
        self._after_step(step)
