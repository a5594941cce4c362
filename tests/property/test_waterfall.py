"""With any sample, the waterfall sums to the card and invents nothing."""

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.memory.waterfall import MemoryPart, Waterfall, waterfall
from harness.records.memory import MemorySampleRow, ModuleMemoryRow

GIB = 2**30
SIZES = st.none() | st.integers(0, 200 * GIB)
HONEST = st.lists(st.integers(0, 100 * GIB), min_size=5, max_size=5).map(sorted)


def a_sample(**sizes: int | None) -> MemorySampleRow:
    nothing: dict[str, int | None] = dict.fromkeys(MemorySampleRow._fields)
    return MemorySampleRow(**nothing | {"seq": 0, "t_ns": 0, "step": 1} | sizes)  # type: ignore[arg-type]  # None fits the rest


def a_module(
    parameters: int = 4 * GIB, gradients: int | None = 4 * GIB, optimizer: int | None = 8 * GIB
) -> ModuleMemoryRow:
    return ModuleMemoryRow(1, "", "Linear", parameters, 0, gradients, optimizer, None)


FULL = a_sample(
    allocated_bytes=20 * GIB,
    reserved_bytes=30 * GIB,
    free_bytes=6 * GIB,
    split_free_bytes=4 * GIB,
    process_bytes=31 * GIB,
    used_bytes=41 * GIB,
    total_bytes=80 * GIB,
)


def sizes(breakdown: Waterfall | None) -> dict[str, int]:
    assert breakdown is not None
    return {bar.name: bar.size_bytes // GIB for bar in breakdown.bars}


@given(
    st.builds(
        a_sample,
        allocated_bytes=SIZES,
        reserved_bytes=SIZES,
        free_bytes=SIZES,
        split_free_bytes=SIZES,
        process_bytes=SIZES,
        used_bytes=SIZES,
        total_bytes=SIZES,
    ),
    st.lists(st.builds(a_module, st.integers(0, 9 * GIB), SIZES, SIZES), max_size=3),
    st.booleans(),
    SIZES,
)
def test_the_bars_sum_to_the_card_for_any_readings(
    sample: MemorySampleRow, modules: list[ModuleMemoryRow], is_cpu: bool, level: int | None
) -> None:
    breakdown = waterfall(sample, modules, is_cpu, level)
    if breakdown is None:
        inside = (sample.allocated_bytes, sample.reserved_bytes, sample.process_bytes, sample.used_bytes)
        assert not sample.total_bytes or inside == (None,) * 4
        return
    assert sum(bar.size_bytes for bar in breakdown.bars) == breakdown.total_bytes == sample.total_bytes
    assert all(bar.size_bytes > 0 and bar.name and bar.meaning.endswith(".") for bar in breakdown.bars)
    assert len({bar.name for bar in breakdown.bars}) == len(breakdown.bars)
    assert breakdown.disputed_bytes >= 0


@given(HONEST)
def test_consistent_readings_are_used_unchanged(levels: list[int]) -> None:
    allocated, reserved, process, used, total = levels
    if total:
        sample = a_sample(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            process_bytes=process,
            used_bytes=used,
            total_bytes=total,
        )
        breakdown = waterfall(sample, [], is_cpu=False)
        assert breakdown is not None
        assert breakdown.disputed_bytes == 0
        by_place = {bar.place: bar.size_bytes for bar in breakdown.bars}
        assert by_place.get(MemoryPart.OTHERS, 0) == used - process
        assert by_place.get(MemoryPart.CONTEXT, 0) == process - reserved
        assert by_place.get(MemoryPart.FREE, 0) == total - used


def test_every_part_of_the_card_has_its_bar() -> None:
    assert sizes(waterfall(FULL, [a_module()], is_cpu=False, level_bytes=19 * GIB)) == {
        "other processes": 10,
        "context and libraries": 1,
        "reserved, whole blocks": 6,
        "reserved, split remainders": 4,
        "weights and buffers": 4,
        "gradients": 4,
        "optimizer state": 8,
        "retained between steps": 3,
        "activations and temporaries": 1,
        "free": 39,
    }


def test_a_process_missing_in_nvml_is_one_bar_with_the_others() -> None:
    bars = sizes(waterfall(FULL._replace(process_bytes=None), [], is_cpu=False))
    assert bars["other processes, context and libraries"] == 11


def test_without_nvml_free_memory_is_not_guessed() -> None:
    bars = sizes(waterfall(FULL._replace(process_bytes=None, used_bytes=None), [], is_cpu=False))
    assert bars["context, libraries, other processes or free"] == 50
    assert "free" not in bars


def test_a_heap_without_a_reading_of_its_free_part_is_one_bar_with_the_libraries() -> None:
    bars = sizes(waterfall(FULL._replace(reserved_bytes=None), [], is_cpu=True))
    assert bars["Python, libraries and free heap"] == 11


@given(st.integers(0, 100))
def test_activations_are_only_what_is_not_in_use_between_two_steps(level: int) -> None:
    bars = sizes(waterfall(FULL, [a_module()], is_cpu=True, level_bytes=level * GIB))
    retained = min(4, max(0, level - 16))
    assert bars.get("retained between steps", 0) == retained
    assert bars.get("activations and temporaries", 0) == 4 - retained


def test_without_a_level_between_steps_the_two_are_one_bar() -> None:
    bars = sizes(waterfall(FULL, [a_module()], is_cpu=True))
    assert bars["retained between steps, activations and temporaries"] == 4


def test_missing_gradients_are_part_of_the_activations() -> None:
    bars = sizes(waterfall(FULL._replace(allocated_bytes=14 * GIB), [a_module()], is_cpu=False))
    assert bars["gradients, retained between steps, activations and temporaries"] == 2
    assert "gradients" not in bars


def test_an_inconsistent_census_is_left_out() -> None:
    bars = sizes(waterfall(FULL._replace(allocated_bytes=2 * GIB), [a_module()], is_cpu=False))
    assert bars["allocated, not broken down"] == 2
    assert "weights and buffers" not in bars


def test_contradicting_readings_are_reconciled_and_reported() -> None:
    bars = waterfall(FULL._replace(process_bytes=28 * GIB), [], is_cpu=False)
    assert bars is not None
    assert bars.disputed_bytes == 2 * GIB
    assert "context and libraries" not in sizes(bars)


def test_without_readings_there_is_no_waterfall() -> None:
    assert waterfall(None, [], is_cpu=False) is None
    assert waterfall(a_sample(total_bytes=GIB), [], is_cpu=False) is None
    assert waterfall(FULL._replace(total_bytes=None), [], is_cpu=False) is None
