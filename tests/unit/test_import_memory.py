"""The memory of imported modules, which is no part of a script's."""

import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from harness.attach.guard import ScriptGuard
from harness.attach.import_memory import ImportMemory
from harness.device.cpu.device import CpuDevice
from harness.device.cpu.heap import HeapSize

_MIB = 1 << 20
_HOLDS = "data = bytearray({mib} << 20)\n"


@pytest.fixture
def memory() -> Iterator[ImportMemory]:
    device = CpuDevice.open()
    measured = ImportMemory(device.heap_size, ScriptGuard())
    yield measured
    measured.close()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages; what is imported from it is forgotten."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_memory_of_an_installed_module_is_measured_with_that_of_its_imports(
    memory: ImportMemory, installed: Path
) -> None:
    (installed / "outer_part.py").write_text("import inner_part\n" + _HOLDS.format(mib=8))
    (installed / "inner_part.py").write_text(_HOLDS.format(mib=16))
    __import__("outer_part")
    assert 24 * _MIB <= memory.close().in_use_bytes < 26 * _MIB


def test_a_module_of_the_script_is_not_among_them(
    memory: ImportMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_part.py").write_text(_HOLDS.format(mib=8))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("own_part")
    monkeypatch.delitem(sys.modules, "own_part")
    assert memory.close() == HeapSize()
    assert type(module.__spec__) is ModuleSpec


def test_an_import_on_another_thread_is_not_among_them(memory: ImportMemory, installed: Path) -> None:
    (installed / "other_part.py").write_text(_HOLDS.format(mib=8))
    thread = threading.Thread(target=lambda: __import__("other_part"))
    thread.start()
    thread.join()
    assert memory.close() == HeapSize()


def test_an_imported_module_is_as_without_measuring(memory: ImportMemory, installed: Path) -> None:
    (installed / "plain_part.py").write_text(_HOLDS.format(mib=4))
    module = __import__("plain_part")
    spec = module.__spec__
    assert type(spec) is ModuleSpec
    assert spec.loader is module.__loader__
    assert set(vars(spec)) == set(vars(traceback.__spec__))
    assert not spec._initializing  # type: ignore[attr-defined]
    assert memory.close().in_use_bytes >= 4 * _MIB


def test_a_module_that_is_only_looked_for_is_imported_later(memory: ImportMemory, installed: Path) -> None:
    (installed / "optional_part.py").write_text(_HOLDS.format(mib=4))
    assert importlib.util.find_spec("optional_part") is not None
    assert importlib.util.find_spec("missing_part") is None
    __import__("optional_part")
    assert memory.close().in_use_bytes >= 4 * _MIB


def test_an_error_and_a_warning_of_a_module_have_no_frames_of_ours(
    memory: ImportMemory, installed: Path
) -> None:
    (installed / "failing_part.py").write_text(
        'import warnings\nwarnings.warn("old", DeprecationWarning, stacklevel=2)\n1 / 0\n'
    )
    with pytest.warns(DeprecationWarning, match="old") as caught, pytest.raises(ZeroDivisionError) as failure:
        __import__("failing_part")
    files = [frame.filename for frame in traceback.extract_tb(failure.value.__traceback__)]
    assert not [file for file in files if "harness" in file]
    assert caught[0].filename == __file__
    (installed / "next_part.py").write_text(_HOLDS.format(mib=4))
    __import__("next_part")
    assert memory.close().in_use_bytes >= 4 * _MIB


def test_closing_leaves_imports_alone(memory: ImportMemory, installed: Path) -> None:
    memory.close()
    assert memory not in sys.meta_path
    (installed / "late_part.py").write_text(_HOLDS.format(mib=4))
    __import__("late_part")
    assert memory.close() == HeapSize()
