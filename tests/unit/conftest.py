"""Fixtures of the tests of single modules."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervision import SupervisorBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SupervisorBench]:
    """A home with a supervisor whose runs are small scripts; all of them are ended behind the test."""
    bench = SupervisorBench(tmp_path / "home")
    yield bench
    bench.close()
