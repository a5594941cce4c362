"""Formatting of numbers and times as text: sizes, durations, counts, rates; for the shell and the dashboard.

Functions take base units (bytes, nanoseconds, seconds) or None, which reads "n/a": missing is never zero.
"""

import math
from datetime import datetime

NOT_AVAILABLE = "n/a"
# The environment variable was renamed in torch 2.9; the old name still works.
EXPANDABLE_SEGMENTS = (
    "PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"
)
# Of glibc, in bytes: its own threshold rises to 32 MiB with the blocks that are freed.
SEPARATE_BLOCKS = "MALLOC_MMAP_THRESHOLD_=131072"

_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
# A relative change beyond this, as of a loss that was almost 0, has no digits that mean anything.
_MOST_RELATIVE = 1_000
# A relative decrease beyond this would be rounded to −100 %, as if nothing were left.
_ALMOST_GONE = 0.999
# A smaller percentage would be rounded to 0.0 %.
_LEAST_PERCENT = 0.05
_TIME_UNITS = ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms"), (60_000_000_000, "s"))


def _odd(value: float) -> str | None:
    """Format NaN and infinities; None for a finite number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return None


def size(value_bytes: float | None) -> str:
    """Format bytes in binary units with three significant digits: "1.21 GiB", "812 MiB", "0 B"."""
    if value_bytes is None:
        return NOT_AVAILABLE
    if odd := _odd(value_bytes):
        return odd
    sign = "−" if value_bytes < 0 else ""
    value = abs(value_bytes)
    if round(value) < 1024:
        return f"{sign}{value:.0f} B"
    power = 0
    while value >= 1023.5 and power < len(_SIZE_UNITS):
        value /= 1024
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{sign}{value:,.{digits}f} {_SIZE_UNITS[power - 1]}"


def duration(value_ns: float | None) -> str:
    """Format nanoseconds in a suitable unit: "44.5 ms", "8.1 µs", "2.3 s", "1 h 04 min"."""
    if value_ns is None:
        return NOT_AVAILABLE
    if odd := _odd(value_ns):
        return odd
    sign = "−" if value_ns < 0 else ""
    value = abs(value_ns)
    divisor = 1
    for limit, unit in _TIME_UNITS:
        scaled = value / divisor
        if value < limit and scaled < limit / divisor - 0.5:
            digits = 0 if unit == "ns" or scaled >= 99.95 else 1
            return f"{sign}{scaled:.{digits}f} {unit}"
        divisor = limit
    return sign + span(value / 1e9)


def fine_duration(value_ns: float | None) -> str:
    """Format nanoseconds with three significant digits, for comparisons: "2.05 ms", "44.5 ms", "812 µs",
    "61.2 s"."""
    if value_ns is None:
        return NOT_AVAILABLE
    if odd := _odd(value_ns):
        return odd
    value, unit = value_ns, "ns"
    for larger in ("µs", "ms", "s"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1_000, larger
    return f"{_three_digits(value)} {unit}"


def fine_rate(value_per_s: float | None, noun: str | None = "samples") -> str:
    """Format a rate with at least three significant digits: "1,204 samples/s", "3.12 samples/s"; `noun` None:
    without the unit."""
    if value_per_s is None:
        return NOT_AVAILABLE
    return _odd(value_per_s) or f"{_three_digits(value_per_s)}{_per_second(noun)}"


def _per_second(noun: str | None) -> str:
    return "" if noun is None else f" {noun}/s"


def _three_digits(value: float) -> str:
    """Format a number with at least three significant digits."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    if 0 < abs(value) < 0.9995:
        digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{digits}f}".replace("-", "−")


def relative(share: float | None) -> str:
    """Format a relative change, signed: "+5.1 %", "−12 %", "0 %", "> +100,000 %"; "−99.6 %" and "< −99.9 %"
    of what is almost gone, for −100 % means zero."""
    if share is None:
        return NOT_AVAILABLE
    if odd := _odd(share):
        return odd
    if share > _MOST_RELATIVE:
        return f"> {100 * _MOST_RELATIVE:+,.0f} %"
    if -1 < share < -_ALMOST_GONE:
        return f"< −{100 * _ALMOST_GONE:g} %"
    digits = 1 if abs(share) < 0.0995 or -1 < share <= -0.995 else 0
    text = f"{100 * share:+,.{digits}f} %".replace("-", "−")
    return "0 %" if not any(character in "123456789" for character in text) else text


def milliseconds(value_ns: float | None) -> str:
    """Format nanoseconds in milliseconds, for columns to compare: "44.5 ms", "0.260 ms"."""
    if value_ns is None:
        return NOT_AVAILABLE
    if odd := _odd(value_ns):
        return odd
    value_ms = value_ns / 1e6
    digits = 3 if abs(value_ms) < 1 else 2 if abs(value_ms) < 10 else 1
    return f"{value_ms:,.{digits}f} ms".replace("-", "−")


def span(value_s: float | None) -> str:
    """Format seconds with two units at most: "42 s", "3 min 05 s", "1 h 04 min", "2 d 03 h"."""
    if value_s is None:
        return NOT_AVAILABLE
    if odd := _odd(value_s):
        return odd
    seconds = int(max(0.0, value_s))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60:02d} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600:02d} h"


def ago(value_s: float | None) -> str:
    """Format an age in seconds: "just now", "12 s ago", "3 min ago", "2 h ago", "5 d ago"."""
    if value_s is None or not math.isfinite(value_s):
        return NOT_AVAILABLE
    if value_s < 3:
        return "just now"
    for limit, divisor, unit in ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h")):
        if value_s < limit:
            return f"{int(value_s // divisor)} {unit} ago"
    return f"{int(value_s // 86_400)} d ago"


def count(value: float | None) -> str:
    """Format an integer with thousands separators: "20,413"."""
    if value is None:
        return NOT_AVAILABLE
    return _odd(value) or f"{value:,.0f}".replace("-", "−")


def plural(value: int, noun: str) -> str:
    """Format a count with its noun: "1 step", "20,413 steps"."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def step_range(first: int, last: int) -> str:
    """Format the numbers of successive steps: "step 7", "steps 7 to 1,204"."""
    return f"step {count(first)}" if first == last else f"steps {count(first)} to {count(last)}"


def estimate(value: int, noun: str) -> str:
    """Format an estimated number of things to the two significant digits it has: "about 130,000 steps"."""
    return f"about {plural(int(float(f'{value:.2g}')), noun)}"


def figure(value: float | None, digits: int = 4) -> str:
    """Format a number without a unit to `digits` significant digits, and whole up to a million: "2.303",
    "1.2e-05", "12,346", "NaN"."""
    if value is None:
        return NOT_AVAILABLE
    if odd := _odd(value):
        return odd
    is_whole = 10**digits - 0.5 <= abs(value) < 1e6
    return (f"{value:,.0f}" if is_whole else f"{value:,.{digits}g}").replace("-", "−")


def rate(value_per_s: float | None, noun: str | None = "samples") -> str:
    """Format a rate: "1,204 samples/s", "3.1 samples/s", "0.167 samples/s"; `noun` None: without the unit."""
    if value_per_s is None:
        return NOT_AVAILABLE
    if odd := _odd(value_per_s):
        return odd
    if 0 < abs(value_per_s) < 1:  # With one digit, a step of a minute would read 0.0 samples/s.
        return fine_rate(value_per_s, noun)
    digits = 0 if abs(value_per_s) >= 99.95 else 1
    return f"{value_per_s:,.{digits}f}{_per_second(noun)}"


def flops(value_per_s: float | None) -> str:
    """Format FLOP/s with three significant digits: "296 TFLOP/s", "44.1 MFLOP/s"."""
    if value_per_s is None:
        return NOT_AVAILABLE
    if odd := _odd(value_per_s):
        return odd
    value, units = value_per_s, ["", "K", "M", "G", "T", "P", "E"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f} {units[0]}FLOP/s".replace("-", "−")


def percent(value_pct: float | None) -> str:
    """Format a percentage: "87 %", "2.5 %", "1,250 %", "< 0.1 %" for what would be rounded to zero."""
    if value_pct is None:
        return NOT_AVAILABLE
    if odd := _odd(value_pct):
        return odd
    if 0 < value_pct < _LEAST_PERCENT:
        return "< 0.1 %"
    digits = 0 if abs(value_pct) >= 9.95 or value_pct == round(value_pct) else 1
    return f"{value_pct:,.{digits}f} %".replace("-", "−")


def energy(value_j: float | None) -> str:
    """Format joules with three significant digits: "812 J", "1.21 kJ", "34.5 MJ"."""
    if value_j is None:
        return NOT_AVAILABLE
    if odd := _odd(value_j):
        return odd
    value, unit = value_j, "J"
    for larger in ("kJ", "MJ", "GJ"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1_000, larger
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}".replace("-", "−")


def moment(unix_ns: int | None) -> str:
    """Format a wall time in the local time zone: "2026-11-21 07:52:52"."""
    if unix_ns is None:
        return NOT_AVAILABLE
    return datetime.fromtimestamp(unix_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Return `text` on one line, with control characters (escape sequences, line ends) spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clip(text: str, most: int) -> str:
    """Truncate `text` to `most` characters, the last one "…" if some are cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"


def clip_middle(text: str, first: int, last: int) -> str:
    """Return the first and the last so many characters of a longer text, with " … " for the rest."""
    return text if len(text) <= first + last + 3 else f"{text[:first]} … {text[-last:]}"
