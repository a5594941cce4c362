"""The memory that modules take that a script imports before its training begins.

On the CPU it is from the same heap as tensors: the first optimizer alone imports some 25 MiB of torch.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

from harness.attach.guard import ScriptGuard
from harness.device.cpu.heap import HeapSize
from harness.tracking.frames import is_installed

_RECEIVER = "_stepscope_import_memory"


class _MeasuredSpec(ModuleSpec):
    """The spec of a module until it is imported: the import system sets `_initializing` before and after it.
    A loader around the module's own would be a frame of ours in its tracebacks and its warnings."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing", False))

    @_initializing.setter
    def _initializing(self, is_initializing: bool) -> None:
        self.__dict__["_initializing"] = is_initializing
        receiver: ImportMemory = self.__dict__[_RECEIVER]
        if is_initializing:
            receiver.import_began(self)
        else:
            del self.__dict__[_RECEIVER]
            self.__class__ = ModuleSpec  # type: ignore[assignment]  # The class that it had before.
            receiver.import_ended(self)


class ImportMemory(MetaPathFinder):
    """Adds up the growth of the heap by imports of installed modules on one thread, until `close`. A script's
    own modules are not among them: they may load data."""

    def __init__(self, heap_size: Callable[[], HeapSize], guard: ScriptGuard) -> None:
        """Begin. `heap_size` returns the size of the heap; what fails in here ends the watch of `guard`."""
        self._heap_size = heap_size
        self._run = guard.run
        self._thread = get_ident()
        self._growth = HeapSize()
        # The import under way that no other one is within, and the heap before it.
        self._outermost: ModuleSpec | None = None
        self._before = HeapSize()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return, which reports the import."""
        if self._outermost is not None or target is not None or get_ident() != self._thread:
            return None
        spec = self._find(fullname, path, target)
        if type(spec) is ModuleSpec and isinstance(spec.origin, str) and is_installed(spec.origin):
            spec.__dict__[_RECEIVER] = self
            spec.__class__ = _MeasuredSpec
        return spec

    def _find(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return the spec of the first other finder that has one."""
        for finder in list(sys.meta_path):
            find: Any = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def import_began(self, spec: ModuleSpec) -> None:
        """The import of a module begins."""
        if self._outermost is None and get_ident() == self._thread:
            self._outermost = spec
            self._run(self._note_begin)

    def import_ended(self, spec: ModuleSpec) -> None:
        """The import of a module has ended, also by an error."""
        if self._outermost is spec:
            self._outermost = None
            self._run(self._add)

    def close(self) -> HeapSize:
        """End, and return the growth by all imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        return self._growth

    def _note_begin(self) -> None:
        self._before = self._heap_size()

    def _add(self) -> None:
        self._growth = self._growth.plus(self._heap_size().minus(self._before))
