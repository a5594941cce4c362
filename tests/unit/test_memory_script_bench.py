"""The scripts of `tests.bench.script_memory`."""

from tests.bench.memory_behaviors import HEALTHY, LEAKING
from tests.bench.memory_scripts import MemoryScript, draw_script

_SEEDS = 300


def _scripts() -> list[MemoryScript]:
    return [draw_script(seed) for seed in range(_SEEDS)]


def test_scripts_are_python_and_a_seed_draws_the_same_one_again() -> None:
    for script in _scripts():
        compile(script.text, "train.py", "exec")
    assert _scripts() == _scripts()


def test_the_lines_that_retain_memory_are_those_of_leaking_scripts() -> None:
    assert all(bool(script.lines()) == script.leaks for script in _scripts())


def test_all_behaviors_are_drawn() -> None:
    drawn = {script.behavior.name for script in _scripts()}
    assert len(drawn) >= len(HEALTHY) + len(LEAKING)


def test_only_scripts_that_reach_a_cap_have_one() -> None:
    assert all(script.leaks for script in _scripts() if script.limit is not None)
