"""Test what the overhead is compared with does record every step, and says so where it could not be
measured."""

import sqlite3
from pathlib import Path

import pytest

from tests.bench.blocks import Block, turns
from tests.bench.figures import Figure, all_met, row
from tests.bench.fixed_work import fixed_work
from tests.bench.floor import Floor
from tests.bench.report import DOC, with_table


def _a_block(us: float) -> Block:
    return Block(us, us, us, us)


def test_the_floor_has_every_step_when_it_is_closed(tmp_path: Path) -> None:
    with Floor(tmp_path) as floor:
        for step in range(100):
            floor.log(step, {f"value {number}": float(number) for number in range(12)})
    with sqlite3.connect(tmp_path / "floor.sqlite3") as connection:
        assert connection.execute("SELECT count(*), max(step), sum(value_11) FROM steps").fetchone() == (
            100,
            99,
            1_100.0,
        )
    connection.close()


def test_an_observed_block_is_compared_with_the_bare_ones_beside_it() -> None:
    result = turns([_a_block(12.0), _a_block(30.0)], [_a_block(8.0), _a_block(12.0), _a_block(28.0)])
    assert [turn.bare.mean_us for turn in result] == [10.0, 20.0]
    assert [turn.extra.mean_us for turn in result] == [2.0, 10.0]


def test_what_could_not_be_measured_says_why_and_misses_nothing() -> None:
    figure = Figure("0.6 ms step: trackio", [], "×", 1.02, note="not installed: run make bench-peers")
    assert row(figure) == "| 0.6 ms step: trackio | n/a | not installed: run make bench-peers | | |"
    assert all_met([figure])


def test_the_fixed_work_is_the_same_each_time() -> None:
    assert fixed_work() == fixed_work() > 10_000


def test_a_table_is_written_between_the_marks_that_name_it() -> None:
    text = "a\n<!-- begin cost -->\nold\n<!-- end cost -->\nb\n"
    assert with_table(text, "cost", "new \\1\n") == "a\n<!-- begin cost -->\nnew \\1\n<!-- end cost -->\nb\n"
    with pytest.raises(ValueError, match="no place"):
        with_table(text, "page", "new")


@pytest.mark.parametrize("name", ["cost-short", "cost-long", "cost-within", "script", "page"])
def test_the_docs_have_a_place_for_the_tables_that_are_generated(name: str) -> None:
    assert "| a |" in with_table(DOC.read_text(encoding="utf-8"), name, "| a |")
