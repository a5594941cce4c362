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

function worstOf(members) {
  return members.find((marker) => marker.tone === "bad") ?? members[0];
}

function textOf(members) {
  const worst = worstOf(members);
  if (members.length === 1) return worst.label;
  return worst.tone === "bad" ? `${worst.label} +${members.length - 1}` : `${members.length} events`;
}

// The label of a group: at the right of its line, or at the left where it would not fit and there is more room.
function placed(members, span, widthPx) {
  const x = ((members[0].step - span[0]) * widthPx) / Math.max(span[1] - span[0], 1e-9);
  const width = widthOf(textOf(members));
  const flip = x + width > widthPx && x > widthPx / 2;
  return { members, flip, left: flip ? x - width : x, right: flip ? x : x + width };
}

// Groups of markers, each with its row: the first free one, else the marker joins the previous group. The label of
// that may then cover the one before it, which it joins in turn.
function arrange(markers, span, widthPx) {
  const rows = [[], []];
  const fits = (row, left) => !row.length || left >= row.at(-1).right + GAP_PX;
  let newest = rows[0];
  for (const marker of markers) {
    if (marker.step < span[0] || marker.step > span[1]) continue;
    let group = placed([marker], span, widthPx);
    const free = rows.find((row) => fits(row, group.left));
    newest = free ?? newest;
    if (!free) group = placed([...newest.pop().members, marker], span, widthPx);
    while (!fits(newest, group.left)) group = placed([...newest.pop().members, ...group.members], span, widthPx);
    newest.push(group);
  }
  return rows.flatMap((row, at) => row.map(({ flip, members }) => ({ row: at, flip, members })));
}

// Plotly reads some HTML; labels of a run are text.
const plain = (text) => text.replaceAll("<", "&lt;");

export function lay(layout, markers, palette, span, widthPx) {
  const labels = arrange(markers, span, widthPx).map(({ row, flip, members }) => {
    const worst = worstOf(members);
    const messages = members.slice(0, 12).map((marker) => plain(`step ${marker.step.toLocaleString("en")}: ${asText(marker.message)}`));
    const bad = worst.tone === "bad";
    return {
      x: members[0].step, xref: "x", y: 1, yref: "paper", text: plain(textOf(members)), showarrow: false,
      xanchor: flip ? "right" : "left", yanchor: "bottom", yshift: row * ROW_PX + 1, borderpad: 2,
      font: { size: 11, color: bad ? palette.bad : palette.text },
      bgcolor: bad ? palette.bad_soft : palette.label, hovertext: messages.join("<br>"),
    };
  });
  layout.annotations = [...(layout.annotations ?? []), ...labels];
}
