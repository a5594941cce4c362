"""A script as the module `__main__`, with what Python itself gives it."""

import builtins
import io
import os
import sys
import zipfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def attributes_from_the_start() -> dict[str, Any]:
    """Return what the module `__main__` has whatever it is read from."""
    attributes: dict[str, Any] = {"__builtins__": builtins}
    # From Python 3.14 on they are computed when they are read, and not at all where they are set.
    if sys.version_info < (3, 14):
        attributes["__annotations__"] = {}
    return attributes


def is_container(path: Path) -> bool:
    """Return whether Python runs the `__main__` within `path`: of a folder or an archive."""
    return path.is_dir() or zipfile.is_zipfile(path)


def find_main(file: str) -> ModuleSpec | None:
    """Return the `__main__` within a folder or an archive; None if there is none."""
    return PathFinder.find_spec("__main__", [file])


def path_of(target: str) -> str:
    """Return the absolute path of a script as Python has it: `./train.py` keeps its dot."""
    return os.path.join(os.getcwd(), target)  # A Path would take it out.


def run_as_main(target: str) -> None:
    """Run the script at the path `target`: a source file, a compiled one, a folder or an archive. Raises what
    it raises, and SyntaxError for a source that cannot be compiled.

    Not by `runpy.run_path`: it leaves paths relative, which is wrong once the script changes its folder, and
    gives `__builtins__` as a dictionary and no loader.
    """
    main = ModuleType("__main__")
    file = path_of(target)
    code, attributes = _load_container(file) if is_container(Path(target)) else _load_file(file)
    vars(main).update(**attributes_from_the_start(), **attributes)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _load_container(file: str) -> tuple[CodeType, dict[str, Any]]:
    spec = find_main(file)
    assert spec is not None
    assert spec.loader is not None
    code: CodeType = spec.loader.get_code("__main__")  # type: ignore[attr-defined]  # of files and archives
    attributes = {
        "__spec__": spec,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__file__": spec.origin or code.co_filename,
        "__cached__": spec.cached,
    }
    return code, attributes


def _load_file(file: str) -> tuple[CodeType, dict[str, Any]]:
    with io.open_code(file) as opened:
        source = opened.read()
    if source.startswith(MAGIC_NUMBER):
        loader: Any = SourcelessFileLoader("__main__", file)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", file)
        try:
            code = compile(source, file, "exec", dont_inherit=True)
        except SyntaxError as error:
            error.filename = error.filename or file  # Of null bytes Python does not say where they are.
            raise
    return code, {"__loader__": loader, "__file__": file, "__cached__": None}
