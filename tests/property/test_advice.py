"""Laws of advice for any log: it never fails, what it proposes can be done, and gains are shares in order."""

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.advice import Known, suggest
from harness.analysis.advice.inspected import Elsewhere, Inspected, Line
from harness.analysis.advice.proposing import is_possible
from harness.analysis.timing.phases import analyse
from harness.demo import write
from harness.records import StepRow
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.advising import read_known
from harness.supervisor.summary import read_device
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


class Whole(NamedTuple):
    known: Known
    rows: list[StepRow]


@lru_cache(maxsize=1)
def logs() -> tuple[Whole, ...]:
    """Simulated runs, and the run of each rule."""
    found = []
    home = Home(Path(mkdtemp()))
    for key in SIMULATED:
        with LogReader(write(key, home, steps=400).log) as reader:
            known = read_known(reader, read_device(reader.run().device))
            if known is not None:
                found.append(Whole(known, reader.steps(1, 400)))
    return (*found, *(Whole(known, list(known.steps)) for known in scenarios().values()))


def holds(known: Known) -> None:
    """Everything that is true of advice on any run."""
    found = suggest(known)
    shares = [-1.0 if told.gain.share is None else told.gain.share for told in found]
    assert shares == sorted(shares, reverse=True)
    assert len({told.rule for told in found}) == len(found)
    now = known.settings.model_dump(mode="json")
    for told in found:
        assert told.gain.share is None or 0.0 <= told.gain.share < 1.0
        assert told.evidence.endswith(".")
        assert told.details
        assert told.change or told.by_hand
        assert told.first_step <= told.last_step
        assert all(now[name] != value for name, value in told.change.items())
        assert not told.change or is_possible(known, told.change)


def cut(whole: Whole, rows: list[StepRow], details: int | None = None) -> Known:
    return whole.known._replace(
        steps=rows, timing=analyse(rows), details=whole.known.details[:details], tried=()
    )


@given(st.integers(0, 40), st.integers(0, 400), st.integers(0, 400))
def test_any_stretch_of_a_log_can_be_advised_on(at: int, first: int, last: int) -> None:
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
LINES = st.builds(Line, st.sampled_from(SITES), st.sampled_from(("loss.item()", "")), st.integers(1, 9))
LEFT = st.builds(Elsewhere, st.just("buffer"), st.text(max_size=5), st.just("cpu"), st.integers(0, 2**40))


@given(
    st.integers(0, 40),
    st.integers(1, 3),
    st.none() | st.lists(LINES, max_size=4).map(tuple),
    st.lists(LEFT, max_size=4).map(tuple),
    st.booleans(),
)
def test_anything_an_inspection_finds_can_be_advised_on(
    at: int, steps: int, lines: tuple[Line, ...] | None, left: tuple[Elsewhere, ...], on_device: bool
) -> None:
    whole = logs()[at % len(logs())]
    settings = whole.known.settings.model_copy(update={"device_metrics": on_device})
    known = cut(whole, whole.rows)._replace(settings=settings)
    holds(known._replace(inspected=Inspected(4, steps, lines, left)))


@given(st.integers(0, 40), st.integers(1, 300))
def test_any_batch_and_setting_can_be_advised_on(at: int, batch: int) -> None:
    whole = logs()[at % len(logs())]
    for values in ({"batch_size": batch}, {"num_workers": batch % 65}, {"empty_cache_every": batch % 5}):
        settings = whole.known.settings.model_copy(update=values)
        holds(cut(whole, whole.rows)._replace(settings=settings))
    holds(cut(whole, whole.rows)._replace(settings=settings.model_copy(update={"model": "unknown"})))
