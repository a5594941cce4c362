"""Footprints of kernels, measured once and cached in this process and in the home.

The memory a kernel retains depends on the kernels before it, so the cache key is the sequence of all calls.
Settings that change no kernel (the optimizer, accumulation), and batches extrapolated from the same two,
share a sequence.
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
    """The footprints of a sequence of calls, in order."""

    footprints: tuple[Footprint | None, ...]


class KernelMeter:
    """Measures sequences of calls, each in its own child process, unless cached."""

    def __init__(self, threads: int, folder: Path | None) -> None:
        """`threads` is the number of torch's threads in the run. `folder` stores footprints; with None they
        are cached only in this process."""
        self._threads = threads
        self._files = RowCache(FootprintList, folder)
        self._cached: dict[str, FootprintList] = {}

    def measure(self, calls: Sequence[Call]) -> tuple[Footprint | None, ...]:
        """Return the footprint of each of the distinct `calls`; None for one that cannot run on zeros. Raises
        KernelsError."""
        key = self._key(calls)
        row = self._cached.get(key) or self._files.get(key)
        if row is None or len(row.footprints) != len(calls):
            with Kernels(self._threads) as kernels:
                row = FootprintList(tuple(map(kernels.measure, calls)))
            self._files.put(key, row)
        self._cached[key] = row
        if len(self._cached) > _MOST_SEQUENCES:
            del self._cached[next(iter(self._cached))]
        return row.footprints

    def _key(self, calls: Sequence[Call]) -> str:
        """Return the cache key of the sequence on this processor with this version of torch."""
        parts = (REVISION, torch_version(), this_processor(), self._threads, *calls)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
