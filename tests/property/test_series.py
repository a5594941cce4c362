"""A series equals what brute force finds in the plain rows, at every size and range."""

import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.records.floats import decode_float, encode_float
from harness.records.run import DeviceSampleRow, StepRow
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.store.rollups import DEVICE_ROLLUPS, STEP_ROLLUPS
from harness.store.series import Span, StepSeries, spans
from tests.examples import examples
from tests.store_factories import a_device_sample, a_run, a_step

_LOSSES = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
)
_BYTES = st.none() | st.integers(0, 2**40)


@st.composite
def _steps(draw: st.DrawFn) -> list[StepRow]:
    """Steps with numbers that skip, losses that are not finite and columns that are not measured."""
    number = draw(st.integers(0, 100))
    strides = draw(st.lists(st.sampled_from((1, 1, 1, 1, 2, 9, 70)), min_size=1, max_size=150))
    rows = []
    for stride in strides:
        number += stride
        loss, state = encode_float(draw(_LOSSES)) if stride != 1 else (number / 8, 0)
        rows.append(
            a_step(number, loss, state)._replace(
                device_gap_ns=number * 3 % 11 if stride == 1 else None,
                active_bytes=draw(_BYTES) if stride > 2 else None,
                tokens=number % 3 or None,
            )
        )
    return rows


def _fields(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    measured = [v for v in values if v is not None]
    name = names[0]
    return {
        f"{name}_min": min(measured, default=None),
        f"{name}_max": max(measured, default=None),
        f"{name}_sum": math.fsum(measured) if measured else None,
        f"{name}_count": len(measured),
    }


def _same(result: Any, expected: Any) -> bool:
    if isinstance(result, float) and isinstance(expected, float):
        return math.isclose(
            result, expected, rel_tol=1e-6, abs_tol=1e33 * 1e-6 if abs(result) > 1e30 else 1e-6
        )
    return bool(result == expected)


def _check(series: StepSeries, expected: list[dict[str, Any]]) -> None:
    assert len(series.rows) == len(expected)
    for row, target in zip(series.rows, expected, strict=True):
        result = dict(zip(series.columns, row, strict=True))
        assert result.keys() == target.keys()
        wrong = {k: (result[k], target[k]) for k in result if not _same(result[k], target[k])}
        assert not wrong


def _brute_steps(rows: list[StepRow], parts: list[Span]) -> list[dict[str, Any]]:
    result = []
    for start, size in _buckets(parts):
        members = [row for row in rows if start <= row.step < start + size]
        if not members:
            continue
        tokens = [row.tokens for row in members if row.tokens is not None]
        bucket: dict[str, Any] = {
            "bucket": start,
            "size": size,
            "rows": len(members),
            "t_ns_first": members[0].t_ns,
            "t_ns_last": members[-1].t_ns,
            "samples_sum": sum(row.samples for row in members),
            "tokens_sum": sum(tokens) if tokens else None,
            "non_finite_sum": sum(bool(row.loss_state) for row in members),
        }
        for name in STEP_ROLLUPS.spread:
            bucket |= _fields((name,), [getattr(row, name) for row in members])
        result.append(bucket)
    return result


def _buckets(parts: list[Span]) -> list[tuple[int, int]]:
    """The start and the size of every bucket."""
    return [(start, part.size) for part in parts for start in range(part.start, part.end, part.size)]


_RANGES = st.tuples(st.integers(0, 10**7), st.sampled_from((1, 30, 900, 10**5)), st.integers(0, 10**6))


@given(bounds=_RANGES, max_points=st.integers(1, 700))
def test_there_are_as_many_buckets_as_asked_for_and_they_cover_the_range_in_order(
    bounds: tuple[int, int, int], max_points: int
) -> None:
    first, least, more = bounds
    last = first + (least + more % (9 * least)) - 1
    parts = spans(first, last, max_points)
    buckets = _buckets(parts)
    assert len(buckets) == min(max_points, last - first + 1)
    assert all(start % size == 0 and size & (size - 1) == 0 for start, size in buckets)
    assert all(start + size == after for (start, size), (after, _) in pairwise(buckets))
    assert buckets[0][0] <= first < sum(buckets[0])
    assert buckets[-1][0] <= last < sum(buckets[-1])
    assert [part.size for part in parts] in ([parts[-1].size], [2 * parts[-1].size, parts[-1].size])


@given(bounds=_RANGES, max_points=st.integers(1, 50), more=st.integers(1, 200))
def test_buckets_stay_where_they_are_while_a_run_grows_or_become_one(
    bounds: tuple[int, int, int], max_points: int, more: int
) -> None:
    first, least, further = bounds
    last = first + least + further % (9 * least) - 1
    now, later = (_buckets(spans(first, end, max_points)) for end in (last, last + more))
    starts = {start for start, _ in now if start > first}
    assert {start for start, _ in later if first < start <= now[-1][0]} <= starts


@examples(0.6)
@given(
    rows=_steps(),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    max_points=st.sampled_from((1, 2, 3, 7, 20, 1000)),
)
def test_a_series_is_exact_for_any_range_and_size(
    rows: list[StepRow], cuts: list[int], bounds: tuple[float, float], max_points: int
) -> None:
    span = rows[-1].step - rows[0].step + 10
    first, last = sorted(rows[0].step - 5 + round(bound * span) for bound in bounds)
    first, last = max(0, first), max(0, last)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite3"
        with LogAppender(path, a_run()) as appender:
            position, turn = 0, 0
            while position < len(rows):
                size = cuts[turn % len(cuts)]
                appender.append(rows[position : position + size])
                position, turn = position + size, turn + 1
            with LogReader(path) as reader:
                series = reader.series(first, last, max_points)
    assert len(series.rows) <= max_points
    _check(series, _brute_steps(rows, spans(first, last, max_points)))


@examples(0.4)
@given(
    strides=st.lists(st.sampled_from((0, 0, 1, 5, 40)), min_size=1, max_size=120),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    max_points=st.sampled_from((1, 2, 5, 16, 1000)),
    batch=st.integers(1, 50),
)
def test_a_device_series_is_exact_for_any_range_and_size(
    strides: list[int], bounds: tuple[float, float], max_points: int, batch: int
) -> None:
    samples: list[DeviceSampleRow] = []
    step = 0
    for seq, stride in enumerate(strides):
        step += stride
        util = None if seq % 5 == 3 else float(seq * 7 % 101)
        samples.append(a_device_sample(seq, step, device="GPU-1", util_pct=util))
    first, last = sorted(round(bound * (step + 4)) for bound in bounds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite3"
        with LogAppender(path, a_run()) as appender:
            for start in range(0, len(samples), batch):
                part = samples[start : start + batch]
                appender.append(rows=[*part, *(s._replace(device="GPU-0", util_pct=1.0) for s in part)])
            with LogReader(path) as reader:
                series = reader.device_series("GPU-1", first, last, max_points)
                assert reader.devices() == ["GPU-0", "GPU-1"]
    within = [s for s in samples if first <= s.step <= last]
    expected = []
    for start, size in _buckets(spans(within[0].seq, within[-1].seq, max_points)) if within else []:
        members = [s for s in samples if start <= s.seq < start + size]
        bucket: dict[str, Any] = {
            "bucket": start,
            "size": size,
            "rows": len(members),
            "t_ns_first": members[0].t_ns,
            "t_ns_last": members[-1].t_ns,
            "step_first": members[0].step,
            "step_last": members[-1].step,
        }
        for name in DEVICE_ROLLUPS.spread:
            bucket |= _fields((name,), [getattr(s, name) for s in members])
        expected.append(bucket)
    assert len(series.rows) <= max_points
    _check(series, expected)


@examples(0.5)
@given(losses=st.lists(_LOSSES, min_size=1, max_size=20))
def test_nan_and_infinities_survive_the_log(losses: list[float | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.sqlite3"
        with LogAppender(path, a_run()) as appender:
            appender.append([a_step(i, *encode_float(loss)) for i, loss in enumerate(losses)])
        with LogReader(path) as reader:
            result = [decode_float(row.loss, row.loss_state) for row in reader.last_steps(100)]
    assert [repr(loss) for loss in result] == [repr(None if loss is None else loss + 0.0) for loss in losses]
