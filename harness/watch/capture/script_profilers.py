"""The profilers that the code under watch starts itself: a process can run one PyTorch profiler.

Patched are the entry points in Python of torch's profilers. A second profiler that is prepared or started
while one is on ends the process with a segmentation fault, now or when the first one ends (torch 2.13).
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch.autograd import profiler, profiler_legacy

from harness.closing import Closing
from harness.watch.training import Replaced

_BEGINNINGS = (
    (profiler.profile, "_prepare_trace"),
    (profiler.profile, "_start_trace"),
    (profiler.emit_nvtx, "__enter__"),
    (profiler.emit_itt, "__enter__"),
    (profiler_legacy.profile, "__enter__"),
)


class ScriptProfilers(Closing):
    """The profilers of the code under watch, between `__init__` and `close`."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        """`give_way` is called before such a profiler is prepared or starts, on its thread."""
        self._give_way = give_way
        self._lock = threading.RLock()
        self._owner = 0
        # Prepared or started, and not ended; not those with an entry of the legacy kinds.
        self._begun: WeakSet[profiler.profile] = WeakSet()
        self._has_searched = False
        self._stack = ExitStack()
        for kind, name in _BEGINNINGS:
            self._stack.callback(Replaced(kind, name, self._begin).remove)

    @property
    def is_on(self) -> bool:
        """Return whether one is prepared or active: torch itself knows only of those that record on the
        calling thread, not of one in the warm-up of its schedule. The first call searches for those that
        were prepared before the patches, which took 80 ms for 180,000 objects."""
        if not self._has_searched:
            self._has_searched = True
            alive = [one for one in gc.get_objects() if type(one) is profiler.profile]
            self._begun.update(one for one in alive if one.enabled and one.entered)
        # Not by a patch of `__exit__`, which a `with` statement looks up when it begins.
        if any(one.kineto_results is None for one in list(self._begun)):
            return True
        return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Within, the calls of torch's profiler on this thread are those of the watch. For one thread."""
        with self._lock:
            before, self._owner = self._owner, threading.get_ident()
            try:
                yield
            finally:
                self._owner = before

    def close(self) -> None:
        """Restore everything. Idempotent."""
        self._stack.close()

    def _begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def begin(one: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not one.enabled or self._owner == threading.get_ident():
                return original(one, *args, **kwargs)
            if isinstance(one, profiler.profile):
                self._begun.add(one)  # First: from now on none of ours starts.
            self._give_way()
            try:
                return original(one, *args, **kwargs)
            except BaseException:
                self._begun.discard(one)
                raise

        return begin
