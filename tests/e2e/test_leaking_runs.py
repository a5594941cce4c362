"""A run that leaks on purpose, for real: it says what was injected, finds it, and goes on."""

from pathlib import Path

import pytest

from harness.errors import OUT_OF_MEMORY_CODE
from harness.records.memory import LeakSeries, LeakVerdict
from harness.records.run import EventKind, Severity
from harness.run import EXIT_OK
from harness.store.home import Home
from tests.e2e.test_run_process import a_child

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_an_injected_leak_is_labelled_and_found_with_its_rate(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), is_fresh=True, inject="leak:list:256KiB", slow_loader_ms=20.0) as child:
        (leak, *_) = child.until(lambda log: [e for _, e in log.events() if e.kind == EventKind.LEAK])
        (row, *_) = child.read(
            lambda log: [row for row in log.memory.leaks() if row.verdict == LeakVerdict.LEAK]
        )
        (injected,) = child.events(EventKind.INJECTED)
        child.process.terminate()
        assert child.end() == EXIT_OK, child.output
    assert injected.severity == Severity.INFO
    assert "appended to a list, 256 KiB per step" in injected.message
    assert row.series == LeakSeries.ALLOCATED
    assert row.bytes_per_step == pytest.approx(256 * 2**10, rel=0.05)
    assert leak.message == row.message


@pytest.mark.long
def test_an_injected_out_of_memory_error_ends_the_run_as_a_real_one(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), is_fresh=True, inject="oom:7", oom_policy="stop") as child:
        assert child.end() == OUT_OF_MEMORY_CODE, child.output
        assert child.read(lambda log: log.extent().last) == 6
