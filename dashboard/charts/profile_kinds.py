"""The time of a step by kind of work, as bars in HTML: of one profile, or of two compared."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from harness import words
from harness.analysis.profiles import ProfileChange, ProfileComparison, by_kind, signed
from harness.records.profile import OperatorKind, ProfileOpRow, ProfileRow

_MEANINGS: Mapping[str, str] = {
    OperatorKind.MATMUL: "Matrix products: linear layers, and attention that is not fused.",
    OperatorKind.CONVOLUTION: "Convolutions, forward and backward.",
    OperatorKind.ATTENTION: "Fused attention: flash, memory-efficient, cuDNN's.",
    OperatorKind.NORMALIZATION: "Batch, layer and group normalization.",
    OperatorKind.ELEMENTWISE: "Elementwise operations: activations, sums, dropout. Memory-bound.",
    OperatorKind.RECURRENT: "Recurrent layers that run as one kernel (persistent LSTM, GRU).",
    OperatorKind.POOLING: "Pooling, forward and backward.",
    OperatorKind.EMBEDDING: "Rows looked up by index, and their gradients.",
    OperatorKind.LOSS: "Loss functions; a separate softmax counts as elementwise.",
    OperatorKind.COPY: "Copies, fills and type conversions.",
    OperatorKind.LAYOUT: "Conversions between NCHW and NHWC, and padding; see channels_last.",
    OperatorKind.OPTIMIZER: "The update of the weights.",
    OperatorKind.COMMUNICATION: "Communication with other devices.",
    OperatorKind.OTHER: "Work that cannot be classified by its name.",
    OperatorKind.IDLE: "Nothing ran: the wall time of the step minus all of the above.",
}
_WHOLE = "whole step"


class KindLine(NamedTuple):
    """One kind of work, per step."""

    kind: str
    # None if not in this profile.
    now_ns: float | None
    # Of the wall time, 0 to 1.
    share: float | None
    # The change since an earlier profile, if there is one.
    before: ProfileChange | None = None


class KindBars(NamedTuple):
    """The lines, and the wall time of a step, which is their sum."""

    lines: Sequence[KindLine]
    whole: KindLine
    # Labels of the two profiles, the earlier first; None for a single profile.
    names: tuple[str, str] | None = None


def of_one(profile: ProfileRow, operators: Sequence[ProfileOpRow]) -> KindBars:
    """Build the bars of one profile."""
    lines = [
        KindLine(part.name, part.time_ns / profile.steps, part.share) for part in by_kind(operators, profile)
    ]
    wall_ns = None if profile.wall_ns is None else profile.wall_ns / profile.steps
    return KindBars(lines, KindLine(_WHOLE, wall_ns, None if wall_ns is None else 1.0))


def of_two(compared: ProfileComparison, names: tuple[str, str]) -> KindBars:
    """Build the bars of two profiles compared by kind of work, the longest first and idle time last."""
    longest = sorted(
        compared.changes,
        key=lambda one: (one.name == OperatorKind.IDLE, -max(one.before_ns or 0.0, one.after_ns or 0.0)),
    )
    lines = [KindLine(one.name, one.after_ns, None, one) for one in longest]
    return KindBars(lines, KindLine(_WHOLE, compared.step.after_ns, None, compared.step), names)


def html(bars: KindBars) -> str:
    """Render the bars for st.html; their colors are in stepscope.css."""
    longest = max([max(line.now_ns or 0.0, _before_ns(line) or 0.0) for line in bars.lines], default=0.0)
    two = bars.names is not None
    head = _head(bars.names) if bars.names is not None else ""
    lines = "".join(_line(line, longest or 1.0, two) for line in bars.lines)
    total = _line(bars.whole, 0.0, two)
    return f'<div class="ss-kinds{" ss-kinds-two" if two else ""}" role="list">{head}{lines}{total}</div>'


def _before_ns(line: KindLine) -> float | None:
    return None if line.before is None else line.before.before_ns


def _head(names: tuple[str, str]) -> str:
    before, now = (escape(name) for name in names)
    return (
        '<div class="ss-kind-line ss-kind-head" aria-hidden="true"><span></span><span></span>'
        f"<span>{before}</span><span>{now}</span><span>change</span></div>"
    )


def _line(line: KindLine, longest: float, two: bool) -> str:
    meaning = escape(_MEANINGS.get(line.kind, ""))
    name = f'<span class="ss-kind-name{" ss-tip" if meaning else ""}" tabindex="0" data-tip="{meaning}">'
    if not meaning:
        name = '<span class="ss-kind-name">'
    figures = [words.milliseconds(line.now_ns)]
    if two:
        figures = [words.milliseconds(_before_ns(line)), *figures, _change(line)]
    else:
        figures.append(escape(words.percent(None if line.share is None else 100 * line.share)))
    cells = "".join(f"<span>{figure}</span>" for figure in figures)
    kind = escape(line.kind if longest else "total")
    return (
        f'<div class="ss-kind-line" role="listitem" data-kind="{kind}">{name}{escape(line.kind)}</span>'
        f'<span class="ss-kind-track">{_tracks(line, longest, two)}</span>{cells}</div>'
    )


def _tracks(line: KindLine, longest: float, two: bool) -> str:
    if not longest:
        return ""
    bar = '<span class="ss-kind-bar{}" style="width:{:.2f}%"></span>'
    before = bar.format(" ss-kind-before", 100 * (_before_ns(line) or 0.0) / longest) if two else ""
    return before + bar.format("", 100 * (line.now_ns or 0.0) / longest)


def _change(line: KindLine) -> str:
    if line.before is None or line.before.after_ns is None:
        return "gone"
    return signed(line.before.percent)
