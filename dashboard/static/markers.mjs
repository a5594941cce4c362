// Places the labels of event markers above the panels in two rows; labels that still collide are grouped. The notes
// and the evaluations of a script take the room that is left.

const ROW_PX = 17;
const GAP_PX = 6;
// Of the text of a label.
const MOST_LINES = 12;
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
function placed(members, span, widthPx, text = textOf(members)) {
  const x = ((members[0].step - span[0]) * widthPx) / Math.max(span[1] - span[0], 1e-9);
  const width = widthOf(text);
  const flip = x + width > widthPx && x > widthPx / 2;
  return { members, quiet: [], flip, x, left: flip ? x - width : x, right: flip ? x : x + width };
}

// Groups of markers in two rows: a marker has the first row that is free at its place, else it joins the previous
// group. The label of that may then cover the one before it, which it joins in turn.
function arrange(markers, span, widthPx) {
  const rows = [[], []];
  const fits = (row, left) => !row.length || left >= row.at(-1).right + GAP_PX;
  let newest = rows[0];
  for (const marker of markers) {
    let group = placed([marker], span, widthPx);
    const free = rows.find((row) => fits(row, group.left));
    newest = free ?? newest;
    if (!free) group = placed([...newest.pop().members, marker], span, widthPx);
    while (!fits(newest, group.left)) group = placed([...newest.pop().members, ...group.members], span, widthPx);
    newest.push(group);
  }
  return rows;
}

// Add the script's own notes and evaluations where there is room; the others are in the text of the nearest label.
function addQuiet(rows, markers, span, widthPx) {
  const covers = (one, other) => one.left < other.right + GAP_PX && other.left < one.right + GAP_PX;
  for (const marker of markers) {
    const label = placed([marker], span, widthPx, `${marker.label} +${markers.length}`);
    const free = rows.find((row) => !row.some((group) => covers(group, label)));
    if (free) {
      free.push(label);
      continue;
    }
    const distance = (group) => Math.abs(group.x - label.x);
    rows.flat().reduce((one, other) => (distance(other) < distance(one) ? other : one)).quiet.push(marker);
  }
}

// The text of a label. Notes and evaluations have no part in that of another event.
function named({ members, quiet }) {
  const others = members[0].tone === "quiet" ? quiet.filter((marker) => marker.label !== members[0].label) : [];
  return others.length ? `${members[0].label} +${others.length}` : textOf(members);
}

// Plotly reads some HTML; labels of a run are text.
const plain = (text) => text.replaceAll("<", "&lt;");

const lineOf = (marker) => plain(`step ${marker.step.toLocaleString("en")}: ${asText(marker.message)}`);

export function lay(layout, markers, palette, span, widthPx) {
  const shown = markers.filter((marker) => marker.step >= span[0] && marker.step <= span[1]);
  const rows = arrange(shown.filter((marker) => marker.tone !== "quiet"), span, widthPx);
  addQuiet(rows, shown.filter((marker) => marker.tone === "quiet"), span, widthPx);
  const labels = rows.flatMap((row, at) => row.map((group) => {
    const { members, quiet, flip } = group;
    const all = [...members, ...quiet].sort((one, other) => one.step - other.step);
    const messages = all.slice(0, MOST_LINES).map(lineOf);
    if (all.length > MOST_LINES) messages.push(`and ${all.length - MOST_LINES} more`);
    const bad = worstOf(members).tone === "bad";
    return {
      x: members[0].step, xref: "x", y: 1, yref: "paper", text: plain(named(group)), showarrow: false,
      xanchor: flip ? "right" : "left", yanchor: "bottom", yshift: at * ROW_PX + 1, borderpad: 2,
      font: { size: 11, color: bad ? palette.bad : palette.text },
      bgcolor: bad ? palette.bad_soft : palette.label, hovertext: messages.join("<br>"),
    };
  }));
  layout.annotations = [...(layout.annotations ?? []), ...labels];
}
