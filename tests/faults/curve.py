"""The losses of a run, taken down outside its log in memory that outlives a kill -9."""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

from harness.device.protocol import StepTicket
from harness.train.readback import LossTicket
from harness.train.timing import Times

_MOST_STEPS = 200_000
_COUNT, _LOSS = struct.Struct("<q"), struct.Struct("<d")


class CurveKeeper:
    """A StepListener that keeps each step's loss in a mapped file."""

    def __init__(self, path: Path, after_step: Callable[[int], None]) -> None:
        """`after_step` is called on the training thread after each step."""
        with path.open("wb+") as file:
            file.truncate(_COUNT.size + _MOST_STEPS * _LOSS.size)
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
        _LOSS.pack_into(self._map, _COUNT.size + (step - 1) * _LOSS.size, loss())
        _COUNT.pack_into(self._map, 0, step)
        self._after_step(step)


def read_curve(path: Path) -> list[float]:
    """The losses of all steps that ended, the first step's first; none when no step did."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(data) < _COUNT.size:
        return []
    (steps,) = _COUNT.unpack_from(data)
    return [_LOSS.unpack_from(data, _COUNT.size + i * _LOSS.size)[0] for i in range(steps)]


def read_steps(path: Path) -> int:
    """How many steps have ended."""
    try:
        with path.open("rb") as file:
            data = file.read(_COUNT.size)
    except FileNotFoundError:
        return 0
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0
