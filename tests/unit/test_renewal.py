"""A log that is begun anew has the rows of the old one, in a folder of any name."""

import os
from pathlib import Path

import pytest

from harness.store.appender import LogAppender
from harness.store.log_files import damage
from harness.store.reader import LogReader
from harness.store.renewal import Renewal, begin_anew
from tests.store_factories import a_run, step_numbers, steps

NAMES = ["runs", "100%41", "a?b", "a#b", os.fsdecode(b"caf\xe9")]


@pytest.fixture(params=NAMES, ids=ascii)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder / "log.sqlite3"


def test_what_can_be_read_of_a_damaged_log_is_in_the_new_one(path: Path) -> None:
    with LogAppender(path, a_run()) as log:
        log.append(steps(1, 100))
        assert begin_anew(path, log, False, 100, lambda: 60.0) == Renewal(0, "log.damaged-1.sqlite3")
        log.append(steps(101, 110))
    with LogReader(path) as reader:
        assert step_numbers(reader) == list(range(1, 111))


def test_a_log_without_damage_is_found_to_have_none(path: Path) -> None:
    with LogAppender(path, a_run()) as log:
        log.append(steps(1, 100))
        assert damage(path) is None
