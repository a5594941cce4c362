"""Habits that a machine can hold: module size, broad handlers, unfinished work."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for folder in ("harness", "dashboard") for p in (ROOT / folder).rglob("*.py"))
DOCUMENTED = sorted(p for folder in ("stepscope", "tests") for p in (ROOT / folder).rglob("*.py")) + SOURCES

# A module beyond this is two.
MOST_LINES = 400


def test_there_are_sources() -> None:
    assert len(SOURCES) > 30


def test_no_module_has_grown_into_two() -> None:
    long = {p.name: n for p in SOURCES if (n := len(p.read_text(encoding="utf-8").splitlines())) > MOST_LINES}
    assert not long


def test_only_the_observers_guard_catches_everything() -> None:
    broad = re.compile(r"except( Exception| BaseException)?( as \w+)?:\s*(#.*)?$", re.MULTILINE)
    result = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for match in broad.finditer(text):
            following = text[match.end() : match.end() + 400]
            if not re.match(r"(\n+[ ]+\S.*){1,6}?\n+[ ]+raise\b", following):
                result.add(path.relative_to(ROOT).as_posix())
    # The entries of a script's step have their guard inline; a launch passes on what a script raised.
    guards = {"watch/dispatch.py", "watch/guard.py", "attach/guard.py", "attach/entries.py"}
    allowed = guards | {"attach/launch.py"}
    assert result <= {f"harness/{module}" for module in allowed}, result


def test_nothing_is_left_unfinished() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert not [p.name for p in SOURCES if words.search(p.read_text(encoding="utf-8"))]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    question = re.compile(r'(?:""")?\s*(What|Which|How|Why|Who|Whatever|Wherever|Whoever)\b')
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in DOCUMENTED:
        text = path.read_text(encoding="utf-8")
        if not any(question.match(text, quotes.start()) for quotes in re.finditer('"""', text)):
            continue
        nodes = ast.walk(ast.parse(text))
        docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        assert not list(filter(question.match, docstrings)), path.name


def test_values_of_a_query_are_bound_by_position_or_by_name() -> None:
    """From Python 3.14 on sqlite3 refuses a sequence for numbered placeholders."""
    numbered = re.compile(r"\?[0-9]")
    found = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if numbered.search(text) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_query = re.search(r"\b(SELECT|WHERE|VALUES|BETWEEN)\b|[<>=] \?", node.value)
                if is_query and numbered.search(node.value):
                    found.append(f"{path.name}:{node.lineno}")
    assert not found


def test_every_callback_of_a_widget_runs_to_its_end() -> None:
    guarded, given = set(), set()
    for path in (one for one in SOURCES if one.is_relative_to(ROOT / "dashboard")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "to_the_end" in map(ast.unparse, node.decorator_list):
                guarded.add(node.name)
            if isinstance(node, ast.keyword) and node.arg in ("on_click", "on_change", "on_select"):
                given.add(ast.unparse(_called_by(node.value)))
    # Others are words for Streamlit, or the argument of a function that draws a widget.
    given = {
        text.rpartition(".")[2]
        for text in given
        if not text.startswith(("'", "to_the_end(")) and text not in ("on_click", "on_change")
    }
    assert "send_setting" in given & guarded
    assert given <= guarded, given - guarded


def _called_by(callback: ast.expr) -> ast.expr:
    """Return the function that a callback calls: its first argument for a partial one."""
    is_partial = isinstance(callback, ast.Call) and ast.unparse(callback.func) == "partial"
    return callback.args[0] if isinstance(callback, ast.Call) and is_partial else callback
