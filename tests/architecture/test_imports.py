"""The layers hold, and the dashboard never pays for torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Imports packages one after the other, and prints each with all imports up to it.
_IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        importlib.import_module(found.name)
    print(package, *({"torch", "scipy"} & set(sys.modules)))
"""


def _heavy_imports(*packages: str) -> dict[str, set[str]]:
    """Return which of torch and SciPy a process has imported after each of these packages."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, *packages], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.count("Traceback"), done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {package: set(imported) for package, *imported in lines}


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_looks_at_runs_imports_no_torch() -> None:
    packages = (
        "harness.store",
        "harness.analysis",
        "harness.catalog",
        "harness.settings.spec",
        "harness.settings.resolve",
        "harness.supervisor",
        "harness.demo",
        "harness.export",
        "harness.importing",
        "harness.metrics",
        "harness.alerts",
        "dashboard.views",
        "dashboard.charts",
        "dashboard.data",
    )
    imported = _heavy_imports(*packages)
    assert imported.keys() == set(packages)
    assert [package for package, heavy in imported.items() if "torch" in heavy] == []


@pytest.mark.slow
def test_the_training_process_imports_torch_and_no_statistics() -> None:
    assert _heavy_imports("harness.train", "harness.run")["harness.run"] == {"torch"}


def test_sql_is_spoken_in_the_store_alone() -> None:
    speakers = {
        path.relative_to(ROOT).as_posix()
        for folder in ("harness", "dashboard")
        for path in (ROOT / folder).rglob("*.py")
        if "import sqlite3" in path.read_text(encoding="utf-8")
    }
    strangers = {path for path in speakers if not path.startswith("harness/store/")}
    # The doctor reports SQLite's version; it opens nothing.
    assert strangers <= {"harness/device/doctor/examine.py"}, strangers
