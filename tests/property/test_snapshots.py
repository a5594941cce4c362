"""Laws of snapshots: sums, comparisons, and reading what nobody vouches for."""

import pickle
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.memory.snapshots import ChangeKind, by_category, compare
from harness.records.memory import AllocationRow, MemoryCategory
from harness.tracking.blocks import LiveBlock, summarize
from harness.tracking.frames import shorten
from harness.tracking.plain_pickle import PickleError, load_plain
from harness.tracking.tracked_blocks import TrackedBlock, alive_at, high_water_mark

_MODULES = st.sampled_from((None, "", "blocks.0", "head"))
_SITES = st.sampled_from(("a.py:1 f", "b.py:2 g", "c.py:3 h"))
_BLOCKS = st.lists(
    st.builds(
        LiveBlock, st.integers(1, 2**40), st.sampled_from(MemoryCategory), _MODULES, _SITES, st.just("")
    )
)
_ROWS = _BLOCKS.map(lambda blocks: summarize(1, blocks, []).rows)


@given(_BLOCKS, _BLOCKS, st.integers(1, 8))
def test_every_block_is_explained_once_and_categories_sum_to_that(
    held: list[LiveBlock], retained: list[LiveBlock], most: int
) -> None:
    summary = summarize(1, held, retained)
    total = sum(block.size_bytes for block in held)
    assert summary.explained_bytes == total
    assert sum(part.held_bytes for part in by_category(summary.rows)) == total
    assert sum(row.blocks for row in summary.rows) == len(held)
    assert sum(row.grown_bytes or 0 for row in summary.rows) == sum(block.size_bytes for block in retained)
    sizes = [row.held_bytes for row in summary.rows]
    assert sizes == sorted(sizes, reverse=True)
    cut = summarize(1, held, retained, most)
    assert (cut.explained_bytes, cut.sites) == (total, summary.sites)
    assert len(cut.rows) == min(most, summary.sites)
    assert [row.rank for row in cut.rows] == list(range(1, len(cut.rows) + 1))


@given(_ROWS)
def test_a_snapshot_does_not_differ_from_itself(rows: list[AllocationRow]) -> None:
    assert compare(rows, rows) == []


@given(_ROWS, _ROWS)
def test_changes_sum_up_and_are_symmetric(before: list[AllocationRow], after: list[AllocationRow]) -> None:
    changes = compare(before, after)
    retained = sum(row.held_bytes for row in after) - sum(row.held_bytes for row in before)
    assert sum(change.grown_bytes for change in changes) == retained
    back = {(c.category, c.module, c.site): c for c in compare(after, before)}
    turned = {
        ChangeKind.NEW: ChangeKind.GONE,
        ChangeKind.GONE: ChangeKind.NEW,
        ChangeKind.GROWN: ChangeKind.SHRUNK,
        ChangeKind.SHRUNK: ChangeKind.GROWN,
    }
    assert len(back) == len(changes)
    for change in changes:
        other = back[change.category, change.module, change.site]
        assert (other.kind, other.grown_bytes) == (turned[change.kind], -change.grown_bytes)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5), st.none() | st.integers(1, 5))))
def test_the_high_water_mark_is_the_maximum(lives: list[tuple[int, int, int | None]]) -> None:
    blocks = []
    for place, (size, born, lasts) in enumerate(lives):
        moment = born * 100 + place
        died = None if lasts is None else moment + lasts * 1000 + place
        blocks.append(TrackedBlock(size, 0, moment, died=died))
    at, most = high_water_mark(blocks)
    assert sum(b.size_bytes for b in alive_at(blocks, at)) == most
    for moment in {b.born for b in blocks}:
        assert sum(b.size_bytes for b in alive_at(blocks, moment)) <= most


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(1 - 2**60, 2**60 - 1), inner)
    ),
    max_leaves=30,
)


@given(_PLAIN)
def test_plain_data_is_read_as_it_was(value: Any) -> None:
    assert load_plain(pickle.dumps(value, protocol=4)) == value


@given(st.binary(max_size=300), st.binary(max_size=40), st.integers(0, 300))
def test_garbage_is_refused_with_a_clean_error(noise: bytes, patch: bytes, at: int) -> None:
    good = pickle.dumps({"segments": [{"device": 0, "blocks": [1, "x", (2.5, None)]}]}, protocol=4)
    for data in (noise, b"\x80\x04" + noise, good[:at] + patch + good[at:], good[:at]):
        with suppress(PickleError):  # Every other error fails the test.
            load_plain(data, most_opcodes=10_000)


@given(st.text())
def test_a_path_is_shortened_for_good(path: str) -> None:
    assert shorten(shorten("/home/" + path)) == shorten("/home/" + path)
