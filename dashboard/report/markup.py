"""HTML of a report: escaped text, tables and sections. Everything from a run passes through `text`."""

from collections.abc import Iterable, Sequence
from html import escape

from harness import words

_LONGEST_CELL = 400


def text(value: str) -> str:
    """Return `value` as escaped text on one line."""
    return escape(words.clip(words.printable(value), _LONGEST_CELL))


def paragraph(sentence: str, kind: str = "") -> str:
    """Return a paragraph of text; `kind` is its class."""
    return f'<p class="{kind}">{text(sentence)}</p>' if kind else f"<p>{text(sentence)}</p>"


def lines(block: str) -> str:
    """Return a block of several lines, verbatim."""
    text = "\n".join(words.printable(line) for line in block.splitlines())
    return f"<pre>{escape(text)}</pre>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a column with a heading ending in ">" is right-aligned."""
    kinds = [' class="number"' if heading.endswith(">") else "" for heading in headings]
    head = "".join(
        f"<th{kind}>{text(heading.removesuffix('>'))}</th>"
        for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and values."""
    entries = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in rows)
    return f"<dl>{entries}</dl>"


def section(title: str, *parts: str) -> str:
    """Return a section; empty without parts."""
    body = "".join(parts)
    return f"<section><h2>{text(title)}</h2>{body}</section>" if body else ""
