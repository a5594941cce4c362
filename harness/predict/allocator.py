"""Simulation of torch's caching allocator for CUDA: the memory that it reserves for a sequence of
allocations.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` with its default settings (no expandable segments):
requests round up to 512 B; those of up to 1 MiB are served from segments of 2 MiB, larger ones of less than
10 MiB from segments of 20 MiB, and the rest from segments of their own size rounded up to 2 MiB. The
allocator uses the smallest free block that is large enough, and splits it if enough remains. Free neighbors
merge. If a segment would exceed the cap, all wholly free segments are released first.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

_ROUND_BYTES = 512
_SMALL_BYTES = 2**20
_SMALL_SEGMENT_BYTES = 2 * 2**20
_LARGE_SEGMENT_BYTES = 20 * 2**20
_LARGE_FROM_BYTES = 10 * 2**20
_ROUND_LARGE_BYTES = 2 * 2**20


class CapError(Exception):
    """The cap is exceeded even after releasing cached segments."""


class Block:
    """A range of a segment, between its neighbors `before` and `after`."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "size")

    def __init__(self, address: int, size: int, is_small: bool) -> None:
        self.address = address
        self.size = size
        self.is_small = is_small
        self.is_free = False
        self.before: Block | None = None
        self.after: Block | None = None

    def __lt__(self, other: "Block") -> bool:
        return (self.size, self.address) < (other.size, other.address)


class CachingAllocator:
    """Allocates and frees blocks, as sizes only. `cap_bytes` limits the reserved bytes.

    Attributes:
        allocated_bytes, reserved_bytes: current values; with `peak_` the maximum so far.
    """

    def __init__(self, cap_bytes: int | None = None) -> None:
        self._cap_bytes = cap_bytes
        self._free: dict[bool, list[Block]] = {True: [], False: []}
        self._next_address = 0
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes in partly used segments."""
        blocks = (block for free in self._free.values() for block in free)
        return sum(block.size for block in blocks if block.before or block.after)

    def allocate(self, size_bytes: int) -> Block:
        """Return a block of at least `size_bytes`. Raises CapError."""
        size = max(_ROUND_BYTES, _up(size_bytes, _ROUND_BYTES))
        is_small = size <= _SMALL_BYTES
        block = self._best_fit(size, is_small)
        if block is None:
            block = self._new_segment(size, is_small)
        self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Free a block, and merge it with its free neighbors."""
        self.allocated_bytes -= block.size
        block.is_free = True
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._remove(other)
                self._merge(block, other)
        insort(self._free[block.is_small], block)

    def _best_fit(self, size: int, is_small: bool) -> Block | None:
        free = self._free[is_small]
        at = bisect_left(free, size, key=lambda block: block.size)
        return free.pop(at) if at < len(free) else None

    def _new_segment(self, size: int, is_small: bool) -> Block:
        if is_small:
            segment = _SMALL_SEGMENT_BYTES
        elif size < _LARGE_FROM_BYTES:
            segment = _LARGE_SEGMENT_BYTES
        else:
            segment = _up(size, _ROUND_LARGE_BYTES)
        self._release_cached(segment)
        block = Block(self._next_address, segment, is_small)
        self._next_address += segment + _ROUND_BYTES  # Segments are not adjacent.
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _release_cached(self, segment: int) -> None:
        """Release cached segments if the cap requires it for one of `segment` bytes."""
        cap = self._cap_bytes
        if cap is None or self.reserved_bytes + segment <= cap:
            return
        whole = [block for free in self._free.values() for block in free if not (block.before or block.after)]
        for block in whole:
            self._remove(block)
            self.reserved_bytes -= block.size
        if self.reserved_bytes + segment > cap:
            raise CapError

    def _split(self, block: Block, size: int) -> None:
        """Split off the rest of a small block, and a rest of more than 1 MiB of a large one."""
        rest = block.size - size
        if rest < (_ROUND_BYTES if block.is_small else _SMALL_BYTES + 1):
            return
        remainder = Block(block.address + size, rest, block.is_small)
        remainder.before, remainder.after = block, block.after
        if block.after is not None:
            block.after.before = remainder
        block.after, block.size = remainder, size
        remainder.is_free = True
        insort(self._free[block.is_small], remainder)

    def _merge(self, block: Block, other: Block) -> None:
        """Merge the free neighbor `other` into `block`."""
        if other is block.before:
            block.address, block.before = other.address, other.before
            if other.before is not None:
                other.before.after = block
        else:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        block.size += other.size

    def _remove(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, block)]


def replay(sizes: Sequence[int], events: Sequence[int], cap_bytes: int | None = None) -> CachingAllocator:
    """Return the allocator after `events`: a number allocates `sizes[number]` bytes, its complement
    (`~number`) frees them. Raises CapError."""
    allocator = CachingAllocator(cap_bytes)
    blocks: dict[int, Block] = {}
    for event in events:
        if event >= 0:
            blocks[event] = allocator.allocate(sizes[event])
        else:
            allocator.free(blocks.pop(~event))
    return allocator


def least_cap(sizes: Sequence[int], events: Sequence[int]) -> int:
    """Return the smallest sufficient cap, to one part in 200: it is between the allocated bytes and the
    reserved bytes without a cap."""
    free = replay(sizes, events)
    low, high = free.peak_allocated_bytes, free.peak_reserved_bytes
    while high - low > max(_ROUND_LARGE_BYTES, high // 200):
        middle = (low + high) // 2
        try:
            replay(sizes, events, middle)
        except CapError:
            low = middle
        else:
            high = middle
    return high


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
