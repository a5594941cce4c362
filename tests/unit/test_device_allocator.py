"""The CUDA allocator's list of segments, added up."""

from typing import Any

from harness.device.cuda.allocator import add_up
from harness.device.protocol import AllocatorReading

MIB = 1 << 20


def a_segment(*blocks: tuple[int, str], **values: Any) -> dict[str, Any]:
    live_bytes = sum(size for size, state in blocks if state.startswith("active"))
    return {
        "device": 0,
        "total_size": sum(size for size, _ in blocks) * MIB,
        "active_size": live_bytes * MIB,
        "blocks": [{"size": size * MIB, "state": state} for size, state in blocks],
        **values,
    }


def test_free_blocks_are_told_apart_by_what_else_is_in_their_segment() -> None:
    segments = [
        a_segment((20, "inactive")),
        a_segment((5, "active_allocated"), (15, "inactive")),
        a_segment((2, "active_allocated")),
    ]
    assert add_up(segments) == AllocatorReading(42 * MIB, 20 * MIB, 15 * MIB, 20 * MIB, 2, 3, 0, 0)


def test_blocks_that_wait_for_a_stream_count_by_either_name() -> None:
    names = ("active_pending_free", "active_awaiting_free")
    assert [add_up([a_segment((4, name))]).waiting_bytes for name in names] == [4 * MIB, 4 * MIB]


def test_what_lies_free_in_a_private_pool_is_nobody_elses() -> None:
    reading = add_up([a_segment((20, "inactive"), segment_pool_id=(0, 1))])
    assert (reading.private_free_bytes, reading.free_bytes, reading.largest_free_bytes) == (20 * MIB, 0, 0)


def test_free_parts_of_an_expandable_segment_can_be_given_back() -> None:
    reading = add_up([a_segment((5, "active_allocated"), (15, "inactive"), is_expandable=True)])
    assert (reading.free_bytes, reading.split_free_bytes) == (15 * MIB, 0)


def test_no_segments_are_zeros() -> None:
    assert add_up([]) == AllocatorReading(0, 0, 0, 0, 0, 0, 0, 0)
