"""What the tests of single modules share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervision import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A home with a supervisor whose runs are small scripts; all of them are ended behind the test."""
    scene = Scene(tmp_path / "home")
    yield scene
    scene.close()
