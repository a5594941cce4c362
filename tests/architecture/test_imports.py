"""The layers hold, and the dashboard never pays for torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1].split(","):
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        importlib.import_module(found.name)
sys.exit("torch" in sys.modules)
"""


def _imports_torch(packages: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, packages], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert not done.stderr.count("Traceback"), done.stderr
    return done.returncode == 1


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "package",
    [
        "dashboard.views,dashboard.charts,dashboard.data",
        "harness.supervisor",
        "harness.store",
        "harness.analysis",
        "harness.catalog",
        "harness.settings.spec",
        "harness.settings.resolve",
        "harness.demo",
        "harness.export",
        "harness.importing",
        "harness.metrics",
        "harness.alerts",
    ],
)
def test_no_torch_is_imported_by(package: str) -> None:
    assert not _imports_torch(package)


def test_the_check_for_torch_can_fail() -> None:
    assert _imports_torch("harness.train")


def test_the_training_process_imports_no_statistics() -> None:
    program = "import sys, harness.run; print('scipy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "False"


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
