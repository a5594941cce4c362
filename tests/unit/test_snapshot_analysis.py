"""Summary, difference and suspects of memory snapshots."""

from harness.analysis.memory.snapshots import (
    CHANGE_HEADINGS,
    SITE_HEADINGS,
    ChangeKind,
    by_category,
    change_cells,
    compare,
    heap_sentence,
    site_cells,
    suspect_sentence,
    suspects,
)
from harness.records.memory import MemoryCategory
from harness.tracking.blocks import summarize
from tests.snapshot_factories import a_block, a_row

MIB = 1 << 20


def test_a_comparison_lists_every_kind_of_change_largest_first() -> None:
    before = [a_row("a", 100, 1), a_row("b", 500, 5), a_row("gone", 50), a_row("same", 7)]
    after = [a_row("a", 160, 2), a_row("b", 300, 3), a_row("new", 900, 9), a_row("same", 7)]
    changes = compare(before, after)
    assert [(c.kind, c.site, c.grown_bytes, c.grown_blocks) for c in changes] == [
        (ChangeKind.NEW, "new", 900, 9),
        (ChangeKind.SHRUNK, "b", -200, -2),
        (ChangeKind.GROWN, "a", 60, 1),
        (ChangeKind.GONE, "gone", -50, -1),
    ]


def test_the_same_site_in_two_modules_is_two_sites() -> None:
    before = [a_row(module="blocks.0"), a_row(module="blocks.1")]
    after = [a_row(module="blocks.0"), a_row(module="blocks.1", held_bytes=300)]
    assert [c.module for c in compare(before, after)] == ["blocks.1"]


def test_categories_are_summed_largest_first() -> None:
    rows = [a_row("a", 1), a_row("b", 2), a_row("w", 10, category=MemoryCategory.WEIGHTS)]
    assert [(c.category, c.held_bytes) for c in by_category(rows)] == [("weights", 10), ("activations", 3)]


def test_suspects_are_the_growing_sites_fastest_first() -> None:
    rows = [a_row("big", 999, grown_bytes=0), a_row("slow", grown_bytes=5), a_row("fast", grown_bytes=50)]
    assert [row.site for row in suspects(rows)] == ["fast", "slow"]


def test_the_sentence_names_the_first_suspect() -> None:
    rows = [
        a_row("loop.py:40 forward", grown_bytes=10 * MIB, grown_blocks=10, module="head"),
        a_row("other.py:1 f", grown_bytes=2048, grown_blocks=1),
    ]
    assert suspect_sentence(rows, 12) == (
        "10 steps retained 10.0 MiB in 10 blocks allocated at loop.py:40 forward (module head), "
        "and less at 1 other site."
    )
    nothing = (
        "No allocation site of tensors retained 1.00 KiB or more from 10 steps. What is retained more "
        "rarely, or outside of tensors (NumPy arrays, bytes, lists), is not found in this way."
    )
    assert suspect_sentence([a_row(grown_bytes=0)], 12) == nothing
    assert suspect_sentence([a_row(grown_bytes=40, grown_blocks=10)], 12) == nothing


def test_other_sites_retained_less_only_where_they_did() -> None:
    rows = [a_row("a", grown_bytes=4096), a_row("b", grown_bytes=4096), a_row("c", grown_bytes=2048)]
    assert suspect_sentence(rows, 12).endswith("allocated at a, and at 2 other sites.")
    assert suspect_sentence(rows[1:], 12).endswith("allocated at b, and less at 1 other site.")


def test_a_result_that_is_retained_is_named_before_the_batches_that_its_graph_keeps() -> None:
    batch = a_row("train.py:11 data", grown_bytes=80 << 10, grown_blocks=10, category=MemoryCategory.INPUTS)
    hidden = a_row("train.py:18 forward", grown_bytes=20 << 10, grown_blocks=10, module="r")
    assert suspect_sentence([batch, hidden], 12) == (
        "10 steps retained 20.0 KiB in 10 blocks allocated at train.py:18 forward (module r), "
        "and 80.0 KiB of their batches."
    )
    assert "allocated at train.py:11 data." in suspect_sentence([batch], 12)


def heap(*growth_kib: int) -> list[int | None]:
    """The heap after each step: it grew by so much from step to step."""
    return [100 * MIB + 1024 * sum(growth_kib[:steps]) for steps in range(len(growth_kib) + 1)]


def test_growth_of_the_heap_that_no_tensor_explains_is_named() -> None:
    assert heap_sentence([], heap(70, *[33] * 10)) == (
        "In 10 steps the heap grew by 33.0 KiB per step, and live tensors of the training thread by 0 "
        "B: what grows is NumPy arrays, bytes, strings, large lists, a library's memory, other threads' "
        "tensors, or autograd nodes of a sum such as total += loss, where loss.item() has none."
    )
    few = heap_sentence([a_row(grown_bytes=10 * 2048)], heap(70, *[33] * 10))
    assert few is not None
    assert "live tensors of the training thread by 2.00 KiB" in few


def test_slow_growth_of_the_heap_is_named_where_the_verdict_states_it() -> None:
    slow = heap(70, *[8] * 10)
    assert heap_sentence([], slow) is None
    assert (heap_sentence([], slow, 8_000.0) or "").startswith(
        "In 10 steps the heap grew by 8.00 KiB per step"
    )
    # A tensor that is kept every twentieth step: what the tracking takes is not this growth.
    assert heap_sentence([], heap(70, *[6] * 10), 8_000.0) is None
    assert heap_sentence([], slow, 65_536.0) is None
    assert heap_sentence([], heap(70, *[40] * 10), 8_000.0) is None


def test_growth_of_the_heap_is_not_named_where_tensors_or_the_tracking_explain_it() -> None:
    assert heap_sentence([a_row(grown_bytes=10 * 32 * 1024)], heap(70, *[33] * 10)) is None
    assert heap_sentence([], heap(70, *[7] * 10)) is None
    assert heap_sentence([], heap(70, *[0] * 5, 4000, *[0] * 4)) is None
    sawtooth = heap(70, *[490] * 5, -2450 + 980, *[490] * 4)
    assert heap_sentence([a_row(grown_bytes=10 * 300 * 1024)], sawtooth) is None
    assert heap_sentence([], heap(70)) is None
    assert heap_sentence([], []) is None
    assert heap_sentence([], [*heap(70, *[33] * 10), None]) is None


def test_rows_have_a_cell_for_each_heading() -> None:
    assert len(site_cells(a_row())) == len(SITE_HEADINGS)
    assert len(change_cells(compare([], [a_row()])[0])) == len(CHANGE_HEADINGS)


def test_blocks_of_one_site_are_one_row_and_nothing_tracked_is_not_zero() -> None:
    summary = summarize(3, [a_block(10), a_block(30), a_block(5, site="x")], None)
    assert [(r.site, r.held_bytes, r.blocks, r.grown_bytes) for r in summary.rows] == [
        ("net.py:40 forward", 40, 2, None),
        ("x", 5, 1, None),
    ]
    assert (summary.explained_bytes, summary.sites) == (45, 2)


def test_a_cut_retains_growing_sites_of_any_size() -> None:
    held = [a_block(1000 + i, site=f"s{i}") for i in range(50)]
    summary = summarize(1, held, [a_block(1, site="leak")], most=10)
    assert len(summary.rows) == 10
    assert summary.sites == 51
    assert summary.explained_bytes == sum(block.size_bytes for block in held)
    leak = summary.rows[-1]
    assert (leak.site, leak.held_bytes, leak.grown_bytes, leak.grown_blocks) == ("leak", 0, 1, 1)
