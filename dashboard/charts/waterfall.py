"""The memory breakdown as a waterfall chart in HTML: a line for each part of the device's memory, each bar
starting where the one above ends. Its colors are in stepscope.css and follow the theme."""

from html import escape

from harness import words
from harness.analysis.memory.waterfall import MemoryBar, MemoryPart, Waterfall

# Free memory takes at most this share of the width and is cut off there, so that used memory stays visible.
MOST_FREE = 0.3


def html(waterfall: Waterfall, whole: str) -> str:
    """Render the chart; `whole` names the sum of the bars: "GPU memory", "host memory"."""
    width = _drawn_bytes(waterfall)
    lines, at = [], 0
    for bar in waterfall.bars:
        broken = bar.place is MemoryPart.FREE and at + bar.size_bytes > width
        drawn = width - at if broken else bar.size_bytes
        lines.append(_line(waterfall, bar, 100 * at / width, 100 * drawn / width, broken))
        at += bar.size_bytes
    total = (
        '<div class="ss-fall-line ss-fall-total" role="listitem">'
        f'<span class="ss-fall-name">{escape(whole)}</span><span class="ss-fall-track"></span>'
        f'<span class="ss-fall-size">{words.size(waterfall.total_bytes)}</span>'
        '<span class="ss-fall-share">100 %</span></div>'
    )
    return f'<div class="ss-fall" role="list">{"".join(lines)}{total}</div>'


def _drawn_bytes(waterfall: Waterfall) -> float:
    """Return the bytes that the full width represents."""
    free = sum(bar.size_bytes for bar in waterfall.bars if bar.place is MemoryPart.FREE)
    used = waterfall.total_bytes - free
    return min(float(waterfall.total_bytes), used / (1 - MOST_FREE)) or 1.0


def _line(waterfall: Waterfall, bar: MemoryBar, left: float, width: float, broken: bool) -> str:
    meaning = bar.meaning + (" Its bar is shortened." if broken else "")
    tip = f"{escape(bar.name)}: {escape(meaning)}"
    name = f'<span class="ss-fall-name ss-tip" tabindex="0" data-tip="{escape(meaning)}">{escape(bar.name)}'
    return (
        f'<div class="ss-fall-line" role="listitem" data-place="{bar.place.value}">{name}</span>'
        f'<span class="ss-fall-track" title="{tip}">'
        f'<span class="ss-fall-bar{" ss-fall-broken" if broken else ""}" '
        f'style="margin-left:{left:.3f}%;width:{width:.3f}%"></span></span>'
        f'<span class="ss-fall-size">{words.size(bar.size_bytes)}</span>'
        f'<span class="ss-fall-share">{escape(words.percent(100 * waterfall.share(bar)))}</span></div>'
    )
