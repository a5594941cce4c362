"""The labels of markers, drawn by Plotly: none covers another."""

import random

import pytest

from tests.e2e.tab import Tab

_LABELS = ("evaluation", "AMP bf16", "batch 48", "empty_cache()", "lr factor 0.5", "note", "out of memory")
_TONES = {"out of memory": "bad", "evaluation": "quiet", "note": "quiet"}
_SPAN = 10_000

_OVERLAPS = """async ([markers, span, width]) => {
    const { lay } = await import("/app/static/markers.mjs");
    const place = document.body.appendChild(document.createElement("div"));
    const layout = { width, height: 300, margin: { l: 0, r: 0, t: 60, b: 0 }, xaxis: { range: span } };
    lay(layout, markers, { text: "#111", bad: "#a00", bad_soft: "#fcc", label: "#ccc" }, span, width);
    await Plotly.newPlot(place, [{ x: span, y: [0, 1] }], layout);
    const labels = [...place.querySelectorAll(".annotation-text-g")];
    const boxes = labels.map((label) => label.getBoundingClientRect());
    Plotly.purge(place);
    place.remove();
    const covers = (one, other) => one.left < other.right && other.left < one.right
        && one.top < other.bottom && other.top < one.bottom;
    const covered = boxes.filter((one, at) => boxes.slice(at + 1).some((other) => covers(one, other)));
    return [boxes.length, covered.length];
}"""

_TEXTS = """async ([markers, span, width]) => {
    const { lay } = await import("/app/static/markers.mjs");
    const layout = {};
    lay(layout, markers, { text: "#111", bad: "#a00", bad_soft: "#fcc", label: "#ccc" }, span, width);
    return layout.annotations.map((label) => [label.x, label.text, label.hovertext]);
}"""


def a_marker(step: int, label: str) -> dict[str, object]:
    return {"step": step, "label": label, "message": label, "tone": _TONES.get(label, "plain")}


@pytest.mark.parametrize("width_px", [300, 1_100])
def test_no_label_covers_another(tab: Tab, width_px: int) -> None:
    source = random.Random(width_px)
    tab.open()
    tab.until(lambda: tab.page.evaluate("typeof Plotly"), lambda kind: kind == "object")
    for count in (1, 2, 3, 5, 8, 13, 40):
        for end in (1.0, 0.1):  # Over the whole chart, and all at its end.
            steps = sorted(int(_SPAN * (1 - end * source.random())) for _ in range(count))
            labels = [source.choice(_LABELS) for _ in steps]
            markers = [a_marker(step, label) for step, label in zip(steps, labels, strict=True)]
            drawn, covered = tab.page.evaluate(_OVERLAPS, [markers, [0, _SPAN], width_px])
            assert 1 <= drawn <= count
            assert covered == 0, (markers, width_px)


def test_many_evaluations_take_no_room_from_a_change(tab: Tab) -> None:
    tab.open()
    tab.until(lambda: tab.page.evaluate("typeof Plotly"), lambda kind: kind == "object")
    markers = [a_marker(step, "evaluation") for step in range(0, _SPAN, 50)]
    markers += [a_marker(4_010, "AMP bf16"), a_marker(4_990, "note")]
    markers.sort(key=lambda marker: str(marker["step"]).zfill(9))
    labels = tab.page.evaluate(_TEXTS, [markers, [0, _SPAN], 1_100])
    texts = [text for _, text, _ in labels]
    assert texts.count("AMP bf16") == 1
    assert not any("events" in text for text in texts)
    lines = [line for _, _, hover in labels for line in hover.split("<br>")]
    further = [int(line.split()[1]) for line in lines if line.startswith("and ")]
    assert len(lines) - len(further) + sum(further) == len(markers)
    assert "step 4,010: AMP bf16" in lines
