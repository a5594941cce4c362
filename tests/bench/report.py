"""Puts the tables of the benchmarks into docs/bench.md, between the marks that name them."""

from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "bench.md"


def with_table(text: str, name: str, table: str) -> str:
    """`text` with what stands between the marks of the benchmark `name` replaced by `table`.

    Raises ValueError where it has no such marks.
    """
    if not has_place(text, name):
        raise ValueError(f"{DOC.name} has no place for the table of {name!r}")
    begin, end = _marks(name)
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}"


def has_place(text: str, name: str) -> bool:
    """Return whether `text` has the marks of the benchmark `name`, each once and in order."""
    begin, end = _marks(name)
    return text.count(begin) == text.count(end) == 1 and text.index(begin) < text.index(end)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"
