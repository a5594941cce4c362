"""Footprints of kernels, measured once: kept in this process and in the home.

What a kernel keeps depends on those that ran before it, so footprints are kept by the sequence of all calls.
Settings that change no kernel (the optimizer, accumulation) and different batches that are continued from the
same two share a sequence.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.predict.cache import RowCache
from harness.predict.calls import Call
from harness.predict.kernels import Footprint, Kernels
from harness.predict.processor import this_processor
from harness.predict.question import REVISION, torch_version

_MOST_SEQUENCES = 64


class FootprintList(NamedTuple):
    """The footprints of a sequence of calls, in its order."""

    footprints: tuple[Footprint | None, ...]


class KernelMeter:
    """Measures sequences of calls, each in a child process of its own, unless it is known already."""

    def __init__(self, threads: int, folder: Path | None) -> None:
        """`threads`: of torch, as many as the run has. `folder` keeps footprints; None: only this process
        does."""
        self._threads = threads
        self._files = RowCache(FootprintList, folder)
        self._known: dict[str, FootprintList] = {}

    def measure(self, calls: Sequence[Call]) -> tuple[Footprint | None, ...]:
        """The footprint of each of the `calls`, which differ from one another; None for one that cannot be
        run on zeros. Raises KernelsError."""
        key = self._key(calls)
        found = self._known.get(key) or self._files.get(key)
        if found is None or len(found.footprints) != len(calls):
            with Kernels(self._threads) as kernels:
                found = FootprintList(tuple(map(kernels.measure, calls)))
            self._files.put(key, found)
        self._known[key] = found
        if len(self._known) > _MOST_SEQUENCES:
            del self._known[next(iter(self._known))]
        return found.footprints

    def _key(self, calls: Sequence[Call]) -> str:
        """The name of the sequence, on this processor, with this version of torch."""
        stated = (REVISION, torch_version(), this_processor(), self._threads, *calls)
        return hashlib.sha256(repr(stated).encode()).hexdigest()[:32]
