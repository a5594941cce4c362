"""A callback after the first import of a module, which this process does not import by itself.

A script may set variables such as OMP_NUM_THREADS before it imports torch; an earlier import would ignore
them.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Notifying(Loader):
    """The loader of the module, followed by the callback."""

    def __init__(self, loader: Loader, finder: "_Finder") -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import the module, under its own loader, and call back."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.finish()


class _Finder(MetaPathFinder):
    """Stays until the module is imported: packages look for torch without importing it."""

    def __init__(self, name: str, imported: Callable[[], None]) -> None:
        self._name = name
        self._imported = imported
        self._thread = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._name or getattr(self._thread, "is_finding", False):
            return None
        self._thread.is_finding = True
        try:
            spec = find_spec(fullname)
        finally:
            self._thread.is_finding = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Notifying(spec.loader, self)
        return spec

    def finish(self) -> None:
        """Call back, the first time."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._imported()


def after_import(name: str, imported: Callable[[], None]) -> None:
    """Call `imported` once, right after the first import of the top-level module `name`; at once when it is
    imported already."""
    if name in sys.modules:
        imported()
    else:
        sys.meta_path.insert(0, _Finder(name, imported))
