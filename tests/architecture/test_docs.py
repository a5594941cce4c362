"""The paths that the pages for developers name, and the names that docstrings and comments refer to."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "dashboard", "stepscope")
# Paths are relative to the repository or to one of its packages.
BASES = (ROOT, ROOT / "harness", ROOT / "dashboard", ROOT / "docs")


def test_every_path_in_the_table_of_changes_exists() -> None:
    text = (ROOT / "docs" / "where-a-change-goes.md").read_text()
    paths = [path.replace("…", "").rstrip("*") for path in re.findall(r"`([\w…*]+(?:/[\w…*.]*)+)`", text)]
    assert len(paths) > 40
    missing = [path for path in paths if not any(found(base, path) for base in BASES)]
    assert missing == []


def found(base: Path, path: str) -> bool:
    """Whether there is a file or folder of this name, or one that begins with it."""
    whole = base / path
    return whole.exists() or any(whole.parent.glob(f"{whole.name}*"))


def test_every_dotted_name_of_ours_in_backticks_exists() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    pattern = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`")
    references = {(path.name, name) for path in sources for name in pattern.findall(path.read_text())}
    assert len(references) > 100
    assert [one for one in sorted(references) if not is_defined(one[1])] == []


def is_defined(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something that a module defines or imports."""
    path, rest = ROOT, name.split(".")
    while rest and (path / rest[0]).is_dir():
        path, rest = path / rest[0], rest[1:]
    if rest and (path / f"{rest[0]}.py").exists():
        path, rest = path / f"{rest[0]}.py", rest[1:]
    else:
        path, rest = path / "__init__.py", rest[:1]  # Which imports the rest.
    defined = {word for node in ast.walk(ast.parse(path.read_text())) for word in names_in(node)}
    return set(rest) <= defined


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name.rpartition(".")[2]]
    return []
