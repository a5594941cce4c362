"""The order of samples: shuffled, seeded, endless, in full batches."""

from collections.abc import Iterator

import numpy as np

from harness.data.source import Indices
from harness.records.ranks import ALONE, RankPlace

# Longer sources are sampled with replacement: a permutation would take 8 bytes per sample.
_PERMUTE_UP_TO = 2**22


def order_bytes(samples: int) -> int:
    """Return the size of the order of so many samples."""
    return 0 if samples > _PERMUTE_UP_TO else 8 * samples


class ShuffledBatches:
    """Endless batches of indices over `length` samples: each sample once per pass.

    A batch may span two passes, so every batch is full, even if it is larger than the source. The same seed
    and `generation` give the same order; each rebuild of a run's loader takes the next generation. Several
    ranks draw the same order and share each part of it, a batch each.
    """

    def __init__(
        self, length: int, batch_size: int, seed: int, generation: int, place: RankPlace = ALONE
    ) -> None:
        self._length = length
        self._batch_size = batch_size
        self._place = place
        self._seed = seed
        self._generation = generation

    def __iter__(self) -> Iterator[Indices]:
        """Yield index vectors of length `batch_size`, endlessly."""
        size = self._batch_size
        begin = size * self._place.rank
        for indices in self._of_all_ranks(size * self._place.size):
            yield indices[begin : begin + size]

    def _of_all_ranks(self, size: int) -> Iterator[Indices]:
        random = np.random.default_rng([self._seed, self._generation])
        if self._length > _PERMUTE_UP_TO:
            while True:
                yield random.integers(self._length, size=size)
        waiting: Indices = np.empty(0, dtype=np.int64)
        at = 0
        while True:
            while len(waiting) - at < size:
                waiting = np.concatenate([waiting[at:], random.permutation(self._length)])
                at = 0
            yield waiting[at : at + size]
            at += size
