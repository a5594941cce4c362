"""What all tests share."""

import os

import pytest

# Two torch processes that each take every core slow each other down many times over.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the person's own runs, nor hears their settings."""
    for name in list(os.environ):
        if name.startswith("STEPSCOPE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path_factory.mktemp("home")))
