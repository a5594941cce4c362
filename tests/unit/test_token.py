"""The token's file: made once, for its owner alone, and never believed when others could know it."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import HomeError
from harness.store.home import Home
from harness.store.token import TOKEN_FILE, ensure_token, read_token
from tests.guard_factories import NOBODY, needs_root


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_it_is_made_once_and_long_enough(home: Home) -> None:
    assert read_token(home) is None
    token = ensure_token(home)
    # 43 characters of base64 carry 256 bits.
    assert len(token) == 43
    assert ensure_token(home) == read_token(home) == token


def test_its_file_is_its_owners_alone(home: Home) -> None:
    mask = os.umask(0)
    try:
        ensure_token(home)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((home.path / TOKEN_FILE).stat().st_mode) == 0o600
    assert [path.name for path in home.path.iterdir() if path.is_file()] == [TOKEN_FILE]


def test_several_that_make_it_at_once_agree(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: ensure_token(home), range(16)))) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_one_that_others_could_read_or_write_is_refused(home: Home, mode: int) -> None:
    ensure_token(home)
    (home.path / TOKEN_FILE).chmod(mode)
    with pytest.raises(HomeError, match="only you own and can read"):
        ensure_token(home)


@needs_root
def test_one_of_another_user_is_refused(home: Home) -> None:
    ensure_token(home)
    os.chown(home.path / TOKEN_FILE, NOBODY, NOBODY)
    with pytest.raises(HomeError, match="only you own and can read"):
        read_token(home)


def test_a_link_a_pipe_and_a_short_word_are_refused(home: Home, tmp_path: Path) -> None:
    ensure_token(home)
    path = home.path / TOKEN_FILE
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    with pytest.raises(HomeError, match="cannot be read"):
        read_token(home)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(HomeError, match="only you own and can read"):
        read_token(home)
    path.unlink()
    path.write_text("short\n", encoding="ascii")
    path.chmod(0o600)
    with pytest.raises(HomeError, match="no usable token"):
        read_token(home)
