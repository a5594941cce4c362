"""The axis that the curves of several runs share."""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.charts.axes import step_axis, x_axis
from harness.analysis.compare.curves import CurveAxis

TITLES: Mapping[CurveAxis, str] = {
    CurveAxis.STEP: "step",
    CurveAxis.TIME: "seconds since the first step",
    CurveAxis.SAMPLES: "samples",
}
_HOVERS: Mapping[CurveAxis, str] = {
    CurveAxis.STEP: "step %{x:,d}",
    CurveAxis.TIME: "%{x:,.1f} s",
    CurveAxis.SAMPLES: "%{x:,.0f} samples",
}


def common_axis(axis: CurveAxis, extent: Sequence[float]) -> dict[str, Any]:
    """Build the axis with its title, from the first to the last position drawn."""
    return (step_axis(extent) if axis is CurveAxis.STEP else x_axis()) | {
        "title": {"text": TITLES[axis], "standoff": 4, "font": {"size": 12, "color": "@muted"}},
        "unifiedhovertitle": {"text": _HOVERS[axis]},
    }
