"""Memory that a script does not hold by its own variables: that of imported modules and of stored exceptions.

Nothing here runs code that a class of the script's may define.
"""

import sys
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

import harness
from harness.tracking.frames import is_installed, is_library, is_own, shorten
from harness.watch.oom.arrays import attributes_of, is_kind_of

_OWN_PACKAGES = frozenset({harness.__name__, "stepscope"})
_variables_of_module: Any = vars(ModuleType)["__dict__"]
_traceback_of_error: Any = BaseException.__dict__["__traceback__"]
_parts_of_error: Any = tuple(BaseException.__dict__[name] for name in ("args", "__cause__", "__context__"))


def script_modules(frames: Iterable[FrameType]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the shortened files of the script's own modules, and their variables; without the modules that
    are in `frames` themselves."""
    running = {id(frame.f_globals) for frame in frames if frame.f_code.co_name == "<module>"}
    for name, module in list(sys.modules.items()):
        if not is_kind_of(module, ModuleType) or name.partition(".")[0] in _OWN_PACKAGES:
            continue
        variables = _variables_of_module.__get__(module)
        path = variables.get("__file__")
        if type(path) is not str or id(variables) in running or is_installed(path):
            continue
        if not is_library(shorten(path)):
            yield shorten(path), variables


def parts_of_error(error: BaseException, running: Iterable[FrameType]) -> Iterator[Any]:
    """Yield the attributes and arguments of `error`, the errors behind it, and the frames of its traceback
    that have ended, which are kept with it: those `running` have variables of their own."""
    yield from list(attributes_of(error).values())
    for descriptor in _parts_of_error:
        yield descriptor.__get__(error)
    for frame, _ in traceback.walk_tb(_traceback_of_error.__get__(error)):
        if frame not in running and not is_own(shorten(frame.f_code.co_filename)):
            yield frame
