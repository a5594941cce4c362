"""The replayed caching allocator: each of its rules."""

import random

import pytest

from harness.predict.allocator import CachingAllocator, CapError, least_cap, replay

MIB = 2**20


def test_requests_round_up_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1)
    allocator.allocate(513)
    assert allocator.allocated_bytes == 512 + 1024


@pytest.mark.parametrize(
    ("request_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_are_of_2_and_20_mib_or_of_the_requests_own_size(
    request_bytes: int, segment_bytes: int
) -> None:
    allocator = CachingAllocator()
    allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == segment_bytes


def test_a_segment_is_shared_until_it_is_full() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(512)
    assert allocator.reserved_bytes == 4 * MIB


def test_small_and_large_requests_do_not_share_segments() -> None:
    allocator = CachingAllocator()
    allocator.allocate(2 * MIB)
    allocator.allocate(512)
    assert allocator.reserved_bytes == 22 * MIB


def test_what_is_freed_stays_reserved_and_is_used_again() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 30 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 30 * MIB


def test_the_smallest_block_that_suffices_is_taken() -> None:
    allocator = CachingAllocator()
    large, middle = allocator.allocate(40 * MIB), allocator.allocate(12 * MIB)
    allocator.free(large)
    allocator.free(middle)
    allocator.allocate(12 * MIB)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 52 * MIB


def test_a_large_block_keeps_a_rest_of_up_to_1_mib() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(12 * MIB))
    assert allocator.allocate(11 * MIB).size == 12 * MIB
    assert allocator.allocated_bytes == 12 * MIB


def test_free_neighbors_merge() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.free(block)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_holes_between_living_blocks_are_fragmentation() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_under_a_cap_free_segments_are_given_back_first() -> None:
    allocator = CachingAllocator(cap_bytes=40 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_cap_that_cannot_be_kept_is_an_error() -> None:
    allocator = CachingAllocator(cap_bytes=40 * MIB)
    allocator.allocate(30 * MIB)
    with pytest.raises(CapError):
        allocator.allocate(11 * MIB)


def some_events(seed: int) -> tuple[list[int], list[int]]:
    """Allocations and frees in a random order, of sizes from bytes to tens of MiB."""
    generator = random.Random(seed)
    sizes = [int(2 ** generator.uniform(3, 25)) for _ in range(200)]
    events: list[int] = []
    living: list[int] = []
    for number in range(len(sizes)):
        events.append(number)
        living.append(number)
        while living and generator.random() < 0.45:
            events.append(~living.pop(generator.randrange(len(living))))
    return sizes, events


@pytest.mark.parametrize("seed", range(5))
def test_reserved_never_falls_short_of_allocated(seed: int) -> None:
    sizes, events = some_events(seed)
    allocator = replay(sizes, events)
    live_bytes = sum(sizes[e] if e >= 0 else -sizes[~e] for e in events)
    assert live_bytes <= allocator.allocated_bytes <= allocator.reserved_bytes
    assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes


@pytest.mark.parametrize("seed", range(5))
def test_the_least_cap_suffices_and_one_below_what_is_allocated_does_not(seed: int) -> None:
    sizes, events = some_events(seed)
    cap_bytes = least_cap(sizes, events)
    allocator = replay(sizes, events, cap_bytes)
    assert allocator.peak_reserved_bytes <= cap_bytes
    with pytest.raises(CapError):
        replay(sizes, events, allocator.peak_allocated_bytes - MIB)


def test_what_lies_free_in_segments_in_use_is_split_and_whole_free_segments_are_not() -> None:
    allocator = CachingAllocator()
    allocator.allocate(MIB // 2)
    assert allocator.inactive_split_bytes == 2 * MIB - MIB // 2
    allocator.free(allocator.allocate(12 * MIB))
    assert allocator.inactive_split_bytes == 2 * MIB - MIB // 2
