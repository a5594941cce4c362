"""Test what a log says about its run as a whole."""

from pathlib import Path

import pytest

from harness.supervisor.logs import read_log
from tests.store_factories import a_step, write_log

MIB = 2**20


@pytest.mark.parametrize(("peak", "level", "message"), [(9, 5, 9), (9, 20, 20), (None, 20, None)])
def test_the_highest_peak_is_never_below_what_was_allocated(
    tmp_path: Path, peak: int | None, level: int, message: int | None
) -> None:
    sized = [
        a_step(1)._replace(
            peak_allocated_bytes=None if peak is None else peak * MIB, allocated_bytes=4 * MIB
        ),
        a_step(2)._replace(peak_allocated_bytes=None, allocated_bytes=level * MIB),
    ]
    facts = read_log(write_log(tmp_path / "log.sqlite3", sized))
    assert facts.peak_allocated_bytes == (None if message is None else message * MIB)
