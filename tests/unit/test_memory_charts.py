"""The Memory page's charts from rows: sums add up, gaps stay, missing values have a reason."""

import json
from typing import Any

import numpy as np
import pytest

from dashboard import buckets
from dashboard.buckets import Band, BucketTable
from dashboard.charts import allocations, memory, memory_cards, modules, waterfall
from dashboard.charts.live import MemoryLimit
from dashboard.charts.modules import MemoryKind
from dashboard.charts.theme import PALETTES
from dashboard.wire import pack
from harness.analysis.memory import waterfall as analysis
from harness.analysis.memory.snapshots import compare
from harness.records.memory import AllocationRow, MemorySampleRow, ModuleMemoryRow, SnapshotRow
from harness.records.run import EventKind, EventRow, Severity
from tests.figure_schema import validate_figure
from tests.store_factories import a_step

GIB = 2**30
MIB = 2**20


def a_frame(count: int = 50, **values: float) -> BucketTable:
    bands = {}
    for name, value in values.items():
        array = np.full(count, value, dtype=np.float64)
        bands[name] = Band(array, array, array)
    return BucketTable(np.arange(count, dtype=np.float64), 1, bands, count)


def a_sample(step: int = 1, **sizes: int | None) -> MemorySampleRow:
    nothing: dict[str, int | None] = dict.fromkeys(MemorySampleRow._fields)
    return MemorySampleRow(**nothing | {"seq": step, "t_ns": 0, "step": step} | sizes)  # type: ignore[arg-type]  # None fits the rest


def a_timeline(**more: Any) -> memory.Timeline:
    fields: dict[str, Any] = {
        "steps": a_frame(
            allocated_bytes=10.0 * GIB,
            reserved_bytes=20.0 * GIB,
            peak_allocated_bytes=15.0 * GIB,
            inactive_split_bytes=1.0 * GIB,
        ),
        "samples": [a_sample(step, largest_free_bytes=4 * GIB) for step in range(5)],
        "retries": [(1, 0), (4, 2)],
        "events": [],
        "limit": None,
        "is_cpu": False,
        "revision": "r",
        "last_step": 49,
    }
    return memory.Timeline(**fields | more)


def curves(figure: dict[str, Any]) -> dict[str, float]:
    return {trace["name"]: float(trace["y"][-1]) for trace in figure["data"]}


def notes(figure: dict[str, Any]) -> str:
    return " ".join(note["text"] for note in figure["layout"]["annotations"])


def test_what_is_held_and_what_of_it_is_unused_have_a_panel_each() -> None:
    assert curves(memory.figure(a_timeline())) == {
        "reserved": 20,
        "peak": 15,
        "allocated": 10,
        "reserved − allocated": 10,
        "split remainders": 1,
        "largest free block": 4,
        "retries": 2,
    }


def test_what_was_not_measured_has_no_line_and_a_reason() -> None:
    empty = memory.figure(a_timeline(steps=buckets.EMPTY, samples=[], retries=[], last_step=None))
    assert empty["data"] == []
    assert notes(empty).count("n/a") == 3


def test_a_run_on_the_cpu_without_a_memory_sample_has_that_as_the_reason() -> None:
    steps = a_frame(allocated_bytes=5.0 * MIB, peak_allocated_bytes=8.0 * MIB)
    texts = notes(memory.figure(a_timeline(is_cpu=True, steps=steps, samples=[])))
    assert "no memory sample within these steps" in texts
    assert "the allocator does not report" not in texts


def test_on_the_cpu_the_heap_tells_what_is_unused_and_nothing_retries() -> None:
    samples = [a_sample(step, allocated_bytes=5 * MIB, reserved_bytes=9 * MIB) for step in range(5)]
    steps = a_frame(allocated_bytes=5.0 * MIB, peak_allocated_bytes=8.0 * MIB, reserved_bytes=900.0 * MIB)
    figure = memory.figure(a_timeline(is_cpu=True, steps=steps, samples=samples, retries=[]))
    assert curves(figure)["free in the heap"] == 4
    assert "yaxis3" not in figure["layout"]
    whole = next(trace for trace in figure["data"] if trace["name"] == "process (RSS)")
    assert whole["visible"] == "legendonly"
    assert "process (RSS) 900 MiB" in notes(figure)


@pytest.mark.parametrize(("limit", "words"), [(24, "cap 24.0 GiB"), (400, "above this range: cap 400 GiB")])
def test_the_limit_is_a_line_or_words(limit: int, words: str) -> None:
    figure = memory.figure(a_timeline(limit=MemoryLimit(limit * GIB, "cap")))
    assert words in notes(figure)
    assert len(figure["layout"]["shapes"]) == (limit == 24)


def test_a_note_about_what_is_above_the_range_has_room_above_flat_curves() -> None:
    flat = a_timeline(limit=MemoryLimit(400 * GIB, "cap"))
    axis = memory.figure(flat)["layout"]["yaxis"]
    highest = max(
        float(np.nanmax(trace["y"])) for trace in memory.figure(flat)["data"] if trace["yaxis"] == "y"
    )
    assert axis["autorangeoptions"]["include"] > 1.1 * highest
    assert "autorangeoptions" not in memory.figure(a_timeline(limit=None))["layout"]["yaxis"]


def test_leaks_snapshots_and_injected_faults_are_markers() -> None:
    kinds = (EventKind.LEAK, EventKind.SNAPSHOT, EventKind.INJECTED, EventKind.OOM, EventKind.STATE)
    events = [EventRow(0, 5, kind, Severity.INFO, kind.value, "So.", "{}", None) for kind in kinds]
    markers = memory.figure(a_timeline(events=events))["markers"]
    assert [marker["label"] for marker in markers] == ["leak", "snapshot", "injected", "oom"]


def test_the_timeline_is_small_and_names_only_colors_that_exist() -> None:
    figure = memory.figure(a_timeline(limit=MemoryLimit(24 * GIB, "cap")))
    assert len(pack(figure)) < 20_000
    text = json.dumps(figure, default=lambda array: array.tolist())
    names = {part.split('"')[0] for part in text.split('"@')[1:]}
    names |= {card.color for card in memory_cards.cards(a_source())}
    assert all(names <= set(palette) for palette in PALETTES.values())


def a_source(**more: Any) -> memory_cards.MemoryCardData:
    fields: dict[str, Any] = {"recent": (), "samples": (), "latest": None, "is_cpu": False}
    return memory_cards.MemoryCardData(**fields | more)


def test_figures_that_are_not_known_read_n_a_with_the_reason() -> None:
    for is_cpu in (True, False):
        for latest in (None, a_sample()):
            cards = memory_cards.cards(a_source(is_cpu=is_cpu, latest=latest))
            assert {card.value for card in cards} == {"n/a"}
            assert all(card.missing and card.help.endswith(".") for card in cards)


def test_much_unused_at_the_peak_and_retries_are_worth_a_color() -> None:
    recent = [
        a_step(step)._replace(peak_allocated_bytes=10 * GIB, alloc_retries=step) for step in range(1, 9)
    ]
    latest = a_sample(allocated_bytes=2 * GIB, reserved_bytes=40 * GIB, largest_free_bytes=MIB, live_blocks=7)
    tones = {card.key: card.tone for card in memory_cards.cards(a_source(recent=recent, latest=latest))}
    assert (tones["unused"], tones["retries"]) == ("warn", "bad")


@pytest.mark.parametrize(("sampled", "note"), [(7, "at step 7"), (8, "in use"), (0, "in use")])
def test_a_sample_from_before_the_last_step_names_its_step(sampled: int, note: str) -> None:
    recent = [a_step(step) for step in range(1, 9)]
    latest = a_sample(step=sampled, allocated_bytes=GIB)
    (card, *_) = memory_cards.cards(a_source(recent=recent, latest=latest, is_cpu=True))
    assert card.note == note


def test_the_memory_of_a_step_has_not_the_step_of_a_sample_without_it() -> None:
    recent = [a_step(step)._replace(allocated_bytes=GIB) for step in range(1, 9)]
    (card, *_) = memory_cards.cards(a_source(recent=recent, latest=a_sample(step=7)))
    assert (card.value, card.note) == ("1.00 GiB", "in tensors")


@pytest.mark.parametrize(("sampled", "peak"), [(12, "12.0 GiB"), (2, "10.0 GiB"), (None, "10.0 GiB")])
def test_the_peak_is_no_less_than_the_allocated_memory_beside_it(sampled: int | None, peak: str) -> None:
    recent = [a_step(step)._replace(peak_allocated_bytes=10 * GIB) for step in range(1, 9)]
    latest = a_sample(allocated_bytes=None if sampled is None else sampled * GIB)
    cards = {card.key: card for card in memory_cards.cards(a_source(recent=recent, latest=latest))}
    assert cards["peak"].value == peak
    assert ("memory sample" in cards["peak"].help) is (sampled == 12)


def test_each_bar_begins_where_the_one_above_ended_and_free_memory_is_drawn_short() -> None:
    sample = a_sample(
        allocated_bytes=10 * GIB,
        reserved_bytes=20 * GIB,
        process_bytes=21 * GIB,
        used_bytes=30 * GIB,
        total_bytes=140 * GIB,
    )
    breakdown = analysis.waterfall(sample, [], is_cpu=False)
    assert breakdown is not None
    html = waterfall.html(breakdown, "GPU memory")
    places = [part.partition('"')[0] for part in html.split('style="')[1:]]
    ends = [0.0]
    for place in places:
        left, width = (float(item.split(":")[1].rstrip("%")) for item in place.split(";"))
        assert left == pytest.approx(ends[-1], abs=0.01)
        ends.append(left + width)
    assert ends[-1] == pytest.approx(100, abs=0.01)
    assert "ss-fall-broken" in html
    assert "140 GiB" in html


def test_names_in_the_waterfall_are_text() -> None:
    bar = analysis.MemoryBar(analysis.MemoryPart.FREE, "<b>x</b>", 5, 'say "so"<.')
    assert "<b>" not in waterfall.html(analysis.Waterfall((bar,), 5, 0), "<i>card</i>")


MODEL = [
    ModuleMemoryRow(1, "", "Net", 0, 0, 0, 0, None),
    ModuleMemoryRow(1, "blocks.2.linear", "Linear", 4 * MIB, MIB, 4 * MIB, 8 * MIB, None),
    ModuleMemoryRow(1, "blocks.10.linear", "Linear", 2 * MIB, 0, 2 * MIB, None, None),
]


def test_modules_are_as_wide_as_what_is_inside_them() -> None:
    trace = modules.icicle(MODEL, MemoryKind.ALL)["data"][0]
    sizes = dict(zip(trace["ids"], trace["values"], strict=True))
    assert sizes["(model)"] == sizes["blocks"] == 21 * MIB
    assert sizes["blocks.2"] == 17 * MIB
    assert trace["ids"].index("blocks.2") < trace["ids"].index("blocks.10")
    assert set(trace["parents"]) - {""} <= set(trace["ids"])
    assert trace["leaf"]["opacity"] == 1  # Of a fainter one, white text cannot be read.


def test_parts_that_nobody_knows_are_not_offered_and_unknown_is_not_zero() -> None:
    assert modules.named_parts(MODEL) == [
        MemoryKind.ALL,
        MemoryKind.PARAMETERS,
        MemoryKind.GRADIENTS,
        MemoryKind.OPTIMIZER,
    ]
    assert modules.named_parts([]) == []
    lines = modules.table_lines(MODEL)
    assert [line.module for line in lines] == ["blocks.2.linear", "blocks.10.linear"]
    assert lines[1].optimizer is None
    assert lines[0].parameters == 5 * MIB


def a_site(site: str, live_bytes: int) -> AllocationRow:
    return AllocationRow(1, 1, "activations", None, site, "", live_bytes, 1, None, None)


def a_snapshot(step: int) -> SnapshotRow:
    return SnapshotRow(1, 0, step, "requested", "tracked", 6, 9, 9, 9, 1, 2_000_000, 1.5, None, None, "Cut.")


def test_a_comparison_names_what_grew_and_by_how_much_a_step() -> None:
    changes = compare([a_site("a.py:1 f", MIB)], [a_site("a.py:1 f", 11 * MIB)])
    text = allocations.in_words(changes, a_snapshot(100), a_snapshot(105))
    assert text == "10.0 MiB more 5 steps later; most of it from a.py:1 f: 2.00 MiB per step."
    assert "earlier" in allocations.in_words(changes, a_snapshot(105), a_snapshot(100))
    assert allocations.in_words([], a_snapshot(1), a_snapshot(2)) == "Nothing differs between them."


def test_a_snapshot_says_what_it_cost_and_explains() -> None:
    text = allocations.cost(a_snapshot(7))
    assert "Training waited 2.0 ms" in text
    assert "1.50 times the usual step time" in text
    assert "100 %" in text
    assert text.endswith("Cut.")
    faster = allocations.cost(a_snapshot(7)._replace(slowdown=0.7))
    assert "Recorded 6 steps, slower by an unknown amount: the steps differ by more" in faster


def test_the_memory_chart_fits_the_schema_of_plotly() -> None:
    validate_figure(memory.figure(a_timeline(limit=MemoryLimit(24 * GIB, "cap"))))


def test_a_peak_of_some_steps_names_them_and_its_line_joins_them() -> None:
    recent = [
        a_step(step)._replace(peak_allocated_bytes=10**9 if step % 4 == 0 else None) for step in range(8)
    ]
    cards = {card.key: card for card in memory_cards.cards(a_source(recent=recent))}
    assert cards["peak"].note == "2 of the last 8 steps"
    assert cards["peak"].spark == [1e9, 1e9]


def test_the_cards_name_a_single_step_in_the_singular() -> None:
    recent = [a_step(1)._replace(peak_allocated_bytes=GIB, alloc_retries=0)]
    notes_by_key = {card.key: card.note for card in memory_cards.cards(a_source(recent=recent))}
    assert notes_by_key["peak"] == "last 1 step"
    assert notes_by_key["retries"] == "0 in the last 1 step"
