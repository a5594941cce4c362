"""Fixtures of the tests of single modules."""

import logging
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


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages that are logged in a test."""
    keeper = _Keeper()
    logging.getLogger().addHandler(keeper)
    yield keeper.messages
    logging.getLogger().removeHandler(keeper)
