"""Runs recorded on real GPUs, on every page: their figures are shown, and no page fails."""

import pytest

from harness.demo.recordings import Recording, recordings, unpack
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.app.conftest import Open, texts

RECORDINGS = recordings()
SOME_LONG = [
    one
    if one.key in ("transformer-h200", "resnet-workstation")
    else pytest.param(one, marks=pytest.mark.long)
    for one in RECORDINGS
]
CARDS = {
    "transformer-workstation": "H100",
    "resnet-workstation": "H100",
    "transformer-h200": "H200",
    "resnet-h200": "H200",
}


@pytest.fixture
def opened(home: Home, request: pytest.FixtureRequest) -> str:
    return unpack(request.param, home).run_id


def test_there_are_recordings() -> None:
    assert {one.key for one in RECORDINGS} == set(CARDS)


@pytest.mark.parametrize("opened", SOME_LONG, ids=lambda one: one.key, indirect=True)
@pytest.mark.parametrize("page", ["live", "memory", "profiler", "runs"])
def test_a_run_of_a_gpu_is_shown(open_page: Open, opened: str, page: str) -> None:
    app = open_page(page, run=opened)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("opened", RECORDINGS, ids=lambda one: one.key, indirect=True)
def test_every_step_is_timed_by_the_gpu_and_has_its_memory(home: Home, opened: str) -> None:
    with LogReader(home.find(opened).log) as log:
        rows = [row for row in log.steps(1, 10**9) if not row.flags]
        details = log.telemetry.details(log.devices()[0], 0, 10**9)
    assert len(rows) > 5  # A run ends after 8 s, and a step of a large preset takes nearly one.
    for row in rows:
        phases = (row.device_forward_ns, row.device_backward_ns, row.device_optimizer_ns)
        assert row.device_step_ns is not None
        assert 0 < sum(ns or 0 for ns in phases) <= 1.01 * row.device_step_ns
        assert row.peak_allocated_bytes is not None
        assert (row.allocated_bytes or 0) <= row.peak_allocated_bytes <= (row.reserved_bytes or 0)
    assert details


@pytest.mark.parametrize("one", RECORDINGS, ids=lambda one: one.key)
def test_the_memory_page_names_the_card(open_page: Open, home: Home, one: Recording) -> None:
    assert CARDS[one.key] in texts(open_page("memory", run=unpack(one, home).run_id))
