"""Page elements used by two or more views. Names of runs are text and never interpreted as markup."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Literal, NamedTuple

import pandas as pd
import streamlit as st

from dashboard import state
from dashboard.data.scalars import MOST_SCALARS
from harness import words
from harness.analysis.state import RunStatus
from harness.errors import READ_ONLY
from harness.records.run import DeviceFacts, DeviceKind, RunState

# An underscore within a word is no markup. The accessible name of an input is its label with the backslashes.
_MARKUP = re.compile(r"((?<![^\W_])_|_(?![^\W_])|[\\`*{}\[\]()<>#+\-.!|~$&^=])")
_SHORTCODE = re.compile(r":(?=\S)")

# Of a column with a bar, by sprintf-js. Streamlit's "percent" follows the language of the browser.
PERCENT_FORMAT = "%.1f %%"

_BADGES: dict[RunState, tuple[str, str]] = {
    RunState.LAUNCHING: ("blue", ":material/hourglass_top:"),
    RunState.RUNNING: ("green", ":material/play_circle:"),
    RunState.PAUSED: ("orange", ":material/pause_circle:"),
    RunState.STALLED: ("orange", ":material/warning:"),
    RunState.STOPPING: ("orange", ":material/stop_circle:"),
    RunState.FINISHED: ("gray", ":material/check_circle:"),
    RunState.STOPPED: ("gray", ":material/stop_circle:"),
    RunState.OUT_OF_MEMORY: ("red", ":material/memory:"),
    RunState.FAILED: ("red", ":material/error:"),
    RunState.KILLED: ("red", ":material/dangerous:"),
    RunState.LOST: ("red", ":material/help:"),
}

# Of a message: its beginning, and what follows the error (a live change before it, what is in the log). An
# error of `load_state_dict` has a line per weight.
_BANNER_CHARACTERS = 400, 300

_BAD = frozenset({RunState.FAILED, RunState.KILLED, RunState.LOST, RunState.OUT_OF_MEMORY})
_WORRYING = frozenset({RunState.STALLED})


def plain(text: str) -> str:
    """Escape `text` for Streamlit's Markdown: no markup, colors, icons, emoji or formulas."""
    escaped = _MARKUP.sub(r"\\\1", text)
    return _SHORTCODE.sub(":\u2060", escaped)


def page_title(title: str) -> None:
    """Draw the title of a page, its only heading of the first level."""
    st.title(title, anchor=False, width="content")


def heading(title: str, help: str | None = None, level: Literal[2, 3] = 2) -> None:
    """Draw a heading, by which a screen reader goes from panel to panel: of level 3 within a panel."""
    draw = st.header if level == 2 else st.subheader
    draw(title, anchor=False, help=help, width="content")


def show_problem() -> None:
    """Draw the sentence of a rejected request."""
    problem = state.problem()
    if problem is not None:
        st.error(plain(problem), icon=":material/error:")


def table(
    rows: "Sequence[Mapping[str, Any] | NamedTuple]",
    *,
    alt: str,
    columns: "Mapping[str, Any | NumberColumn] | None" = None,
    **options: Any,
) -> Any:
    """Draw `rows` as a table, without columns that have no value.

    `columns` configures columns by name, `alt` describes the table to a screen reader, and `options` are
    those of `st.dataframe`, whose result is returned.
    """
    lines = [row if isinstance(row, Mapping) else row._asdict() for row in rows]
    names = [name for name in (lines[0] if lines else ()) if any(line[name] is not None for line in lines)]
    chosen = {name: column for name, column in (columns or {}).items() if name in names}
    numbers = {name: column for name, column in chosen.items() if isinstance(column, NumberColumn)}
    data: Any = {name: [line[name] for line in lines] for name in names}
    # Formatted by pandas, a table takes several times as long.
    is_simple = all(column.is_simple(data[name]) for name, column in numbers.items())
    if not is_simple:
        texts = {name: column.text for name, column in numbers.items()}
        data = pd.DataFrame(data).style.format(texts, na_rep=words.NOT_AVAILABLE)
    return st.dataframe(
        data,
        hide_index=True,
        placeholder=words.NOT_AVAILABLE,
        column_config={
            name: column
            if not isinstance(column, NumberColumn)
            else column.draw(format=column.pattern if is_simple else None)
            for name, column in chosen.items()
        },
        alt=alt,
        **options,
    )


class NumberColumn(NamedTuple):
    """A column of numbers, which the browser sorts as numbers and shows as `text` writes them. Its own
    formats choose no unit by the size of a value, and 1,200 would read "1.200" in some languages.

    Attributes:
        draw: returns the column for Streamlit with the given `format`, of sprintf-js.
        text: writes a number.
        pattern: the format that writes most numbers, of less than 1,000, as `text` does; None: there is none.
    """

    draw: Callable[..., Any]
    text: Callable[[float], str]
    pattern: str | None

    def is_simple(self, values: Sequence[float | None]) -> bool:
        """Return whether `pattern` writes all `values` as `text` does."""
        numbers = [value for value in values if value is not None and value == value]
        return self.pattern is not None and all(self.pattern % value == self.text(value) for value in numbers)


def size_column(label: str, about: str | None = None) -> NumberColumn:
    """Return a column of bytes, each in a unit of its own."""
    return _number_column(label, words.size, about)


def size_change_column(label: str, about: str | None = None) -> NumberColumn:
    """Return a column of differences in bytes."""
    return _number_column(label, lambda change: f"{'+' if change > 0 else ''}{words.size(change)}", about)


def count_column(label: str, about: str | None = None, width: Literal["small"] | None = None) -> NumberColumn:
    """Return a column of whole numbers."""
    return _number_column(label, words.count, about, width, pattern="%d")


def figure_column(label: str) -> NumberColumn:
    """Return a column of numbers without a unit, with the digits that matter."""
    return _number_column(label, words.figure, None)


def decimal_column(label: str, decimals: int, about: str | None = None, sign: str = "") -> NumberColumn:
    """Return a column of numbers with so many decimals, in the unit that `label` names; with `sign` "+" also
    positive ones have a sign."""
    return _number_column(
        label,
        lambda value: f"{value:{sign},.{decimals}f}".replace("-", "−"),
        about,
        pattern=f"%{sign}.{decimals}f",
    )


def percent_column(label: str, about: str | None = None, sign: str = "") -> NumberColumn:
    """Return a column of percentages; with `sign` "+" also positive ones have a sign."""
    return _number_column(label, lambda value: _percent(value, sign), about, pattern=f"%{sign}.1f %%")


def _percent(value: float, sign: str) -> str:
    """Return a percentage with one decimal. A share is not rounded to zero."""
    return words.percent(value) if not sign and 0 < value < 1 else f"{value:{sign},.1f} %".replace("-", "−")


def _number_column(
    label: str,
    text: Callable[[float], str],
    about: str | None,
    width: Literal["small"] | None = None,
    pattern: str | None = None,
) -> NumberColumn:
    draw = partial(st.column_config.NumberColumn, label, help=about, width=width)
    return NumberColumn(draw, text, pattern)


def read_only_badge() -> None:
    """Draw a badge with the reason why this dashboard has no controls."""
    st.badge("read-only", icon=":material/visibility:", color="gray", help=plain(READ_ONLY))


def state_words(run_state: RunState) -> str:
    """Return the readable name of a state: "out of memory"."""
    return run_state.value.replace("_", " ")


def state_pill(status: RunStatus) -> None:
    """Draw the run's state as a colored badge, with its sentence as the tooltip."""
    color, icon = _BADGES[status.state]
    st.badge(state_words(status.state), icon=icon, color=color, help=plain(status.message))  # type: ignore[arg-type]  # a Literal


def banner(status: RunStatus) -> None:
    """Draw a sentence across the page if a run needs attention or failed, or does something else than it
    mostly does. The details of the run have all of a long message."""
    message = plain(words.clip_middle(status.message, *_BANNER_CHARACTERS))
    if status.state in _BAD:
        st.error(message, icon=_BADGES[status.state][1])
    elif status.state in _WORRYING or status.is_warning:
        st.warning(message, icon=_BADGES[RunState.STALLED][1])
    elif status.is_notice:
        st.info(message, icon=_BADGES[status.state][1])


def device_words(device: DeviceFacts) -> str:
    """Return a short description of a device: "H200 · 141 GiB", "CPU · 8 cores · 31 GiB"."""
    name = device.name.removeprefix("NVIDIA ")
    memory = words.size(device.memory_bytes)
    if device.kind is DeviceKind.CPU:
        cores = words.plural(device.multiprocessors, "core") if device.multiprocessors else "CPU"
        return f"CPU · {cores} · {memory}"
    return f"{name} · {memory}"


def last_lines(lines: list[str]) -> None:
    """Draw the last lines of a run's output, verbatim."""
    if lines:
        st.code("\n".join(lines), language=None, wrap_lines=True)


def share_bar(parts: Sequence[tuple[str, int]], whole_bytes: int) -> None:
    """Draw a bar of named parts with a legend of their sizes. A part is as long as its share of the whole, or
    of the sum of parts if that is more. The colors are in stepscope.css."""
    segments = [(escape(name), size) for name, size in parts if size > 0]
    longest = max(whole_bytes, sum(size for _, size in segments), 1)
    blocks = [
        f'<span class="ss-bar-part" data-part="{name}" style="width:{100 * size / longest:.2f}%"></span>'
        for name, size in segments
    ]
    legend = [
        f'<span class="ss-bar-name" data-part="{name}">{name} <b>{words.size(size)}</b></span>'
        for name, size in segments
    ]
    st.html(f'<div class="ss-bar">{"".join(blocks)}</div><div class="ss-bar-legend">{"".join(legend)}</div>')


def scalar_selection(
    names: Sequence[str],
    key: str,
    default: Sequence[str],
    width: int | Literal["stretch"] = "stretch",
) -> list[str]:
    """Draw the selection of logged scalars, each of which gets a panel; return those selected. `default` are
    those selected so far: a value set by the session state is sent once, and may be missed. `width` is in
    pixels."""
    return st.multiselect(
        "Logged numbers, each in a panel",
        names,
        default=default,
        key=key,
        format_func=words.printable,
        max_selections=MOST_SCALARS,
        placeholder="None selected",
        width=width,
    )
