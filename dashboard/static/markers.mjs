// Places the labels of event markers above the panels in two rows; labels that still collide are grouped.

const ROW_PX = 17;
const GAP_PX = 6;
let ruler;

function widthOf(text) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = "11px 'Source Sans', sans-serif";
  return ruler.measureText(text).width + 10;
}

// Plotly reads some HTML in text.
function asText(message) {
  return message.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// Groups of markers, each with its row: the first free one, else the marker joins the previous group.
export function arrange(markers, span, widthPx) {
  const scale = widthPx / Math.max(span[1] - span[0], 1e-9);
  const ends = [-Infinity, -Infinity];
  const groups = [];
  for (const marker of markers) {
    if (marker.step < span[0] || marker.step > span[1]) continue;
    const width = widthOf(marker.label);
    const x = (marker.step - span[0]) * scale;
    const left = Math.min(x, widthPx - width);
    const row = ends.findIndex((end) => left >= end + GAP_PX);
    if (row < 0 && groups.length) {
      groups[groups.length - 1].members.push(marker);
      continue;
    }
    ends[row] = left + width;
    groups.push({ row, flip: x + width > widthPx, members: [marker] });
  }
  return groups;
}

// Plotly reads some HTML; labels of a run are text.
const plain = (text) => text.replaceAll("<", "&lt;");

export function lay(layout, markers, palette, span, widthPx) {
  const labels = arrange(markers, span, widthPx).map(({ row, flip, members }) => {
    const worst = members.find((marker) => marker.tone === "bad") ?? members[0];
    const text = members.length === 1 ? worst.label : worst.tone === "bad" ? `${worst.label} +${members.length - 1}` : `${members.length} events`;
    const messages = members.slice(0, 12).map((marker) => plain(`step ${marker.step.toLocaleString("en")}: ${asText(marker.message)}`));
    const bad = worst.tone === "bad";
    return {
      x: members[0].step, xref: "x", y: 1, yref: "paper", text: plain(text), showarrow: false,
      xanchor: flip ? "right" : "left", yanchor: "bottom", yshift: row * ROW_PX + 1, borderpad: 2,
      font: { size: 11, color: bad ? palette.bad : palette.text },
      bgcolor: bad ? palette.bad_soft : palette.label, hovertext: messages.join("<br>"),
    };
  });
  layout.annotations = [...(layout.annotations ?? []), ...labels];
}
