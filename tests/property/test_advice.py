"""Invariants of advice on any log: it never fails, its changes are possible, and its gains are in order."""

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.advice import RunEvidence, suggest
from harness.analysis.advice.inspection import MisplacedTensor, StepInspection, SyncLine
from harness.analysis.advice.options import is_possible
from harness.analysis.timing.phases import analyze
from harness.demo import write
from harness.records.run import StepRow
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence
from harness.supervisor.stored_json import read_device
from tests.advice_factories import scenarios

SIMULATED = ("steady", "amp", "fragmentation", "oom", "slow-loader", "leak")
OPTIONAL = (
    "device_step_ns",
    "device_h2d_ns",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_gap_ns",
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "inactive_split_bytes",
    "alloc_retries",
    "tokens",
)


class RecordedRun(NamedTuple):
    run: RunEvidence
    rows: list[StepRow]


@lru_cache(maxsize=1)
def logs() -> tuple[RecordedRun, ...]:
    """Simulated runs, and the scenario of each rule."""
    runs = []
    home = Home(Path(mkdtemp()))
    for key in SIMULATED:
        with LogReader(write(key, home, steps=400).log) as reader:
            run = read_evidence(reader, read_device(reader.run().device))
            if run is not None:
                runs.append(RecordedRun(run, reader.steps(1, 400)))
    return (*runs, *(RecordedRun(run, list(run.steps)) for run in scenarios().values()))


def holds(run: RunEvidence) -> None:
    """Check the invariants of advice on any run."""
    suggestions = suggest(run)
    shares = [-1.0 if advice.gain.share is None else advice.gain.share for advice in suggestions]
    assert shares == sorted(shares, reverse=True)
    assert len({advice.rule for advice in suggestions}) == len(suggestions)
    now = run.settings.model_dump(mode="json")
    for advice in suggestions:
        assert advice.gain.share is None or 0.0 <= advice.gain.share < 1.0
        assert advice.evidence.endswith(".")
        assert advice.details
        assert advice.change or advice.by_hand
        assert advice.first_step <= advice.last_step
        assert all(now[name] != value for name, value in advice.change.items())
        assert not advice.change or is_possible(run, advice.change)


def cut(whole: RecordedRun, rows: list[StepRow], details: int | None = None) -> RunEvidence:
    return whole.run._replace(
        steps=rows, timing=analyze(rows), details=whole.run.details[:details], past_changes=()
    )


@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 400))
def test_advice_handles_any_range_of_a_log(at: int, first: int, last: int) -> None:
    whole = logs()[at % len(logs())]
    holds(cut(whole, whole.rows[min(first, last) : max(first, last)], last))


@given(st.integers(0, 40), st.sets(st.sampled_from(OPTIONAL)), st.integers(2, 5))
def test_columns_that_were_not_measured_are_no_evidence(at: int, names: set[str], period: int) -> None:
    whole = logs()[at % len(logs())]
    nothing = dict.fromkeys(names)
    everywhere = [row._replace(**nothing) for row in whole.rows]  # type: ignore[arg-type]  # optional columns
    holds(cut(whole, everywhere))
    mixed = [row if row.step % period else none for row, none in zip(whole.rows, everywhere, strict=True)]
    holds(cut(whole, mixed))


SITES = (
    "model.py:12 forward",
    "harness/train/workload.py:107 _to_device",
    "harness/train/workload.py:117 _update",
    "harness/train/workload.py:160 _tidy",
    "no Python code",
)
LINES = st.builds(SyncLine, st.sampled_from(SITES), st.sampled_from(("loss.item()", "")), st.integers(1, 9))
LEFT = st.builds(
    MisplacedTensor, st.just("buffer"), st.text(max_size=5), st.just("cpu"), st.integers(0, 2**40)
)


@given(
    st.integers(0, 40),
    st.integers(1, 3),
    st.none() | st.lists(LINES, max_size=4).map(tuple),
    st.lists(LEFT, max_size=4).map(tuple),
    st.booleans(),
)
def test_advice_handles_any_inspection(
    at: int,
    steps: int,
    lines: tuple[SyncLine, ...] | None,
    left: tuple[MisplacedTensor, ...],
    on_device: bool,
) -> None:
    whole = logs()[at % len(logs())]
    settings = whole.run.settings.model_copy(update={"device_metrics": on_device})
    run = cut(whole, whole.rows)._replace(settings=settings)
    holds(run._replace(inspection=StepInspection(4, steps, lines, left)))


@given(st.integers(0, 40), st.integers(1, 300))
def test_advice_handles_any_batch_and_setting(at: int, batch: int) -> None:
    whole = logs()[at % len(logs())]
    for values in ({"batch_size": batch}, {"num_workers": batch % 65}, {"empty_cache_every": batch % 5}):
        settings = whole.run.settings.model_copy(update=values)
        holds(cut(whole, whole.rows)._replace(settings=settings))
    holds(cut(whole, whole.rows)._replace(settings=settings.model_copy(update={"model": "unknown"})))
