"""The losses of a run as its process keeps them beside its log: their number, then all of them."""

import struct
from pathlib import Path

MOST_STEPS = 200_000
COUNT, LOSS = struct.Struct("<q"), struct.Struct("<d")


def read_curve(path: Path) -> list[float]:
    """The losses of all steps that ended, the first step's first; none when no step did."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(data) < COUNT.size:
        return []
    (steps,) = COUNT.unpack_from(data)
    return [LOSS.unpack_from(data, COUNT.size + i * LOSS.size)[0] for i in range(steps)]


def read_steps(path: Path) -> int:
    """Return how many steps have ended."""
    try:
        with path.open("rb") as file:
            data = file.read(COUNT.size)
    except FileNotFoundError:
        return 0
    return int(COUNT.unpack(data)[0]) if len(data) == COUNT.size else 0
