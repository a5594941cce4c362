"""The packages that `make gpu-check` needs beside torch, for a machine without a network: derived from the
imports of the code that it runs, and from the metadata of what is installed here."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_FOLDERS = ("harness", "tests/gpu")
_FILES = ("tests/conftest.py",)
# Nothing imports them: pytest refuses the option `timeout` of pyproject.toml without its plugin, and the
# digits are read from a file of scikit-learn.
_NOT_IMPORTED = ("pytest-timeout", "scikit-learn")
# Comes with its own CUDA packages; the machine has its own build.
_PRESENT = ("torch",)


def needs() -> list[str]:
    """Lines `name==version`, sorted: what the code imports, and what those packages require in turn."""
    names: dict[str, str] = {}
    waiting = [*_distributions(imported(_sources())), *_NOT_IMPORTED]
    while waiting:
        name = _canonical(waiting.pop())
        if name in names or name in _PRESENT:
            continue
        try:
            result = distribution(name)
        except PackageNotFoundError:
            continue
        names[name] = result.version
        waiting += _required(result.requires or ())
    return sorted(f"{name}=={version}" for name, version in names.items())


def imported(paths: Iterable[Path]) -> set[str]:
    """The top-level modules that these files import, ours and Python's own left out."""
    result: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                result.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                result.add(node.module.partition(".")[0])
    return result - set(sys.stdlib_module_names) - {"harness", "tests", "dashboard"}


def _sources() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from (ROOT / folder).rglob("*.py")
    for file in _FILES:
        yield ROOT / file


def _distributions(modules: Iterable[str]) -> list[str]:
    by_module = packages_distributions()
    return [name for module in modules for name in by_module.get(module, ())]


def _required(requirements: Sequence[str]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
