"""The one palette of every chart, in a light and a dark version.

Figures name colors as "@reserved"; the browser replaces them with the current theme's colors, so a theme
switch repaints without new data. The colors of series differ in lightness as well as hue, for people with
common color-vision deficiencies, and have the same meaning on every page.
"""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "rgba(0,0,0,0)",
    "veil": "rgba(255,255,255,0.8)",
    "text": "#3b4136",
    "ink": "#000000",
    "muted": "#6b7265",
    "grid": "#e6e9e2",
    "axis": "#cfd4c9",
    "marker": "#9aa193",
    "label": "#eceeea",
    "hover": "#fbfcfa",
    "bad": "#c62828",
    "bad_soft": "#fdecea",
    "shade": "rgba(120,130,110,0.13)",
    "arm_a": "rgba(120,130,110,0.16)",
    "arm_b": "rgba(63,127,217,0.20)",
    "reserved": "#3f7fd9",
    "peak": "#e2661a",
    "allocated": "#5d9c10",
    "allocated_fill": "rgba(118,175,42,0.18)",
    "step": "#8e4fd6",
    "step_max": "rgba(142,79,214,0.34)",
    "data_wait": "#dd9a00",
    "h2d": "#2f9fb8",
    "forward": "#6f8fd8",
    "backward": "#9d6bd1",
    "communication": "#cdb3e6",
    "optimizer": "#c26a97",
    "residual": "#a3aa9c",
    "util": "#3f7fd9",
    "loss": "#0f9d7a",
}

DARK: Mapping[str, str] = {
    "paper": "rgba(0,0,0,0)",
    "veil": "rgba(18,21,15,0.8)",
    "text": "#cfd6c7",
    "ink": "#000000",
    "muted": "#99a290",
    "grid": "#2a3025",
    "axis": "#434b3b",
    "marker": "#7d8674",
    "label": "#2b3226",
    "hover": "#1c2118",
    "bad": "#ff7b72",
    "bad_soft": "#45201e",
    "shade": "rgba(190,205,170,0.10)",
    "arm_a": "rgba(190,205,170,0.13)",
    "arm_b": "rgba(107,166,245,0.24)",
    "reserved": "#6ba6f5",
    "peak": "#ff9350",
    "allocated": "#9bd14a",
    "allocated_fill": "rgba(139,200,60,0.17)",
    "step": "#bb8cf5",
    "step_max": "rgba(187,140,245,0.48)",
    "data_wait": "#f2bd3d",
    "h2d": "#58c4dc",
    "forward": "#93aef0",
    "backward": "#c095ee",
    "communication": "#6c4d8f",
    "optimizer": "#e594bb",
    "residual": "#7d8674",
    "util": "#6ba6f5",
    "loss": "#3cc9a3",
}

PALETTES: Mapping[str, Mapping[str, str]] = {"light": LIGHT, "dark": DARK}

# Colors of areas on which the text of the theme is readable; on the other ones "ink" is.
WITH_TEXT = frozenset({"axis", "communication"})

# Colors of runs in a comparison, in order.
RUNS = (
    "reserved",
    "peak",
    "loss",
    "step",
    "data_wait",
    "optimizer",
    "h2d",
    "allocated",
)


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors of the form "#rrggbb", by WCAG 2: 1 to 21."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
