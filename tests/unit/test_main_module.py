"""A script's own module: what `python` gives it, it has under watch as well."""

import compileall
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.attach.launch import Script
from harness.attach.main_module import run_as_main
from harness.errors import UsageError

_SCRIPT = """
import os, sys, typing, __main__
epochs: int = 3
print(sys.argv, sys.path[0], __file__, __name__, __package__, __cached__, type(__loader__))
print(__spec__ and (__spec__.name, __spec__.origin), type(__builtins__))
print(__main__.__dict__ is globals(), sorted(globals()), typing.get_type_hints(__main__))
os.chdir("/")
print(os.path.exists(__file__) or ".pyz" in __file__)
"""
_WATCHED = """
import sys
from harness.attach.launch import Script, execute
error = execute(Script(sys.argv[1], tuple(sys.argv[2:]), {is_module}))
if error is not None:
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)
"""


def _run(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def _watched(folder: Path, *words: str, is_module: bool = False) -> tuple[int, str, str]:
    return _run(folder, "-c", _WATCHED.format(is_module=is_module), *words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script as a file, a folder, an archive, a compiled file and a module."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__main__.py").write_text(_SCRIPT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(_SCRIPT)
    with zipfile.ZipFile(tmp_path / "packed.pyz", "w") as archive:
        archive.writestr("__main__.py", _SCRIPT)
    compileall.compile_file(tmp_path / "train.py", quiet=1, legacy=True)
    (tmp_path / "train.pyc").rename(tmp_path / "compiled.pyc")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["train.py", "./train.py", "project", "./project/", "packed.pyz", "compiled.pyc"]
)
def test_a_script_has_the_attributes_that_python_gives_it(folder: Path, target: str) -> None:
    bare = _run(folder, target, "--epochs", "3")
    assert bare[0] == 0
    assert bare[1].endswith("True\n")
    assert _watched(folder, target, "--epochs", "3") == bare


def test_a_module_has_the_attributes_that_python_gives_it(folder: Path) -> None:
    bare = _run(folder, "-m", "package.train", "1")
    assert bare[0] == 0
    assert _watched(folder, "package.train", "1", is_module=True) == bare


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ["1 / 0\n", "def broken(:\n", "# coding: latin-1\nraise ValueError('é')\n"]
)
def test_a_script_that_fails_has_the_traceback_that_python_prints(tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source, encoding="latin-1")
    bare = _run(tmp_path, "train.py")
    assert bare[0] == 1
    assert _watched(tmp_path, "train.py") == bare


def test_an_archive_without_a_main_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.txt", "1")
    with pytest.raises(UsageError, match=r"archive .*data.zip' has no __main__.py"):
        Script(str(path), (), is_module=False).check()


def test_a_script_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "train.py"
    script.write_bytes(b"x = 1\n\0y = 2\n")
    with pytest.raises(SyntaxError) as refused:
        run_as_main(str(script))
    assert "train.py" in str(refused.value)
