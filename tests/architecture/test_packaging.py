"""Test what is stated twice is stated equal: requirements, pins, tool versions."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _names(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-") for line in lines}


def test_requirements_and_the_package_ask_for_the_same() -> None:
    lines = _lines("requirements.txt")
    assert lines[-1] == "-e ."
    assert lines[:-1] == _project()["dependencies"]


def test_requirements_are_ranges_and_constraints_are_pins() -> None:
    assert all(">=" in line for line in _lines("requirements.txt")[:-1])
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in _lines("constraints.txt"))


def test_everything_asked_for_is_pinned() -> None:
    project = _project()
    expected = _names([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    assert expected <= _names(_lines("constraints.txt"))


def test_the_dead_package_pynvml_is_not_asked_for() -> None:
    assert "pynvml" not in _names([*_lines("requirements.txt"), *_lines("constraints.txt")])


def test_the_chart_library_is_the_one_described_beside_it() -> None:
    (library,) = (ROOT / "dashboard" / "static").glob("plotly-basic-*.min.js")
    described = library.with_name(library.name.replace(".min.js", ".md")).read_text(encoding="utf-8")
    assert hashlib.sha256(library.read_bytes()).hexdigest() in described
    assert "MIT License" in described
    assert f'"{library.name}"' in library.with_name("library.mjs").read_text(encoding="utf-8")


def test_the_configuration_travels_with_the_dashboard() -> None:
    """Streamlit reads the one beside the main script, from whatever folder it is started."""
    top = (ROOT / ".streamlit" / "config.toml").read_bytes()
    assert (ROOT / "dashboard" / ".streamlit" / "config.toml").read_bytes() == top
