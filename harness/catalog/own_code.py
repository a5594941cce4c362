"""Import of a person's own Python file, which is no module of a package."""

import inspect
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import SettingError

# Names of a file in an error message.
_MOST_NAMES = 12


def load_own(setting: str, file: Path, attribute: str) -> Any:
    """Return `attribute` of the Python file. Its folder is put on the path, for imports of its neighbors, and
    each file is imported once.

    Raises SettingError, naming `setting`, when the file cannot be imported or lacks the attribute.
    """
    module = _module(setting, file)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [name for name, value in vars(module).items() if _is_made_in(module, name, value)]
        raise SettingError(setting, f"{file} has no {attribute!r}; it defines {enumerated(names)}.") from None


def call_own(setting: str, title: str, function: Callable[[Any], Any], settings: Any) -> Any:
    """Return what `function`, called `title`, returns for `settings`. Raises SettingError, naming `setting`,
    when it ends the process by `sys.exit`, which would be taken for the end of the run."""
    try:
        return function(settings)
    except SystemExit as error:
        raise SettingError(
            setting, f"{title} exits with {error.code!r}; let it return, or raise an error with the reason."
        ) from error


def enumerated(names: Sequence[str]) -> str:
    """Return the first names of a file, and the number of the others."""
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "nothing") + rest


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether `function` can be called with so many positional arguments, as far as can be known."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # It is not written in Python.
        return True
    return True


def _is_made_in(module: ModuleType, name: str, value: object) -> bool:
    """Return whether a public name of `module` is for something else than what it imports."""
    if name.startswith("_") or isinstance(value, ModuleType):
        return False
    return not callable(value) or getattr(value, "__module__", None) == module.__name__


def _module(setting: str, file: Path) -> ModuleType:
    name = f"stepscope_own_{sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise SettingError(setting, f"There is no Python file {str(file)!r}; check {setting}.")
    module = module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[name] = module  # Before it runs, as Python does: its classes may be pickled.
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:  # Such as argparse's, for the arguments of another program.
        del sys.modules[name]
        raise SettingError(
            setting,
            f"{file} cannot be imported: it exits with {error.code!r}. Write what it does as a script under "
            '`if __name__ == "__main__":`.',
        ) from error
    except Exception as error:
        del sys.modules[name]
        message = " ".join(str(error).split())
        if isinstance(error, ImportError) and "relative import" in message:
            message += "; it is no module of a package: import its neighbors by their names, without the dot"
        raise SettingError(
            setting, f"{file} cannot be imported: {type(error).__name__}: {message}"
        ) from error
    return module
