// The row of cards: value, note and sparkline of a figure, drawn as inline SVG and updated in place.

import { themeOf } from "./wire.mjs";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 30;
const rows = new WeakMap();

function element(parent, tag, className) {
  const made = document.createElement(tag);
  made.className = className;
  return parent.appendChild(made);
}

function open(parent) {
  const root = element(parent, "div", "ss-cards");
  root.setAttribute("role", "list");
  root.setAttribute("aria-label", "Current figures");
  return { root, cards: new Map() };
}

function addCard(root, key) {
  const box = element(root, "div", "ss-card");
  box.setAttribute("role", "listitem");
  box.dataset.card = key;
  const label = element(box, "div", "ss-card-label");
  const value = element(box, "div", "ss-card-value");
  const note = element(box, "div", "ss-card-note");
  const svg = box.appendChild(document.createElementNS(SVG, "svg"));
  svg.setAttribute("class", "ss-card-spark");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const area = svg.appendChild(document.createElementNS(SVG, "path"));
  const line = svg.appendChild(document.createElementNS(SVG, "path"));
  area.setAttribute("class", "ss-spark-area");
  line.setAttribute("class", "ss-spark-line");
  return { box, label, value, note, area, line };
}

// A missing point breaks the line; it is never drawn as zero.
function strokes(points, bounds) {
  const known = points.filter((value) => value !== null);
  if (known.length < 2) return { line: "", area: "" };
  let low = bounds?.[0] ?? Math.min(...known);
  let high = bounds?.[1] ?? Math.max(...known);
  if (high - low < Math.abs(high) * 0.02 + 1e-9) [low, high] = [low - Math.abs(low) * 0.02 - 1e-9, high + Math.abs(high) * 0.02 + 1e-9];
  const x = (index) => ((index / (points.length - 1)) * WIDTH).toFixed(2);
  const y = (value) => (HEIGHT - 2 - ((value - low) / (high - low)) * (HEIGHT - 4)).toFixed(2);
  let line = "";
  let area = "";
  let begin = -1;
  points.forEach((value, index) => {
    if (value !== null) {
      if (begin < 0) begin = index;
      line += `${begin === index ? "M" : "L"}${x(index)} ${y(value)}`;
    }
    const ends = begin >= 0 && (value === null || index === points.length - 1);
    if (ends) {
      const last = value === null ? index - 1 : index;
      area += `M${x(begin)} ${HEIGHT}`;
      for (let at = begin; at <= last; at += 1) area += `L${x(at)} ${y(points[at])}`;
      area += `L${x(last)} ${HEIGHT}Z`;
      begin = -1;
    }
  });
  return { line, area };
}

function update(card, fact, palette) {
  const color = palette[fact.color] ?? fact.color;
  card.label.textContent = fact.label;
  card.value.textContent = fact.value;
  card.note.textContent = fact.note;
  card.note.dataset.tone = fact.tone;
  card.box.dataset.missing = String(fact.missing);
  card.box.title = fact.help;
  card.box.setAttribute("aria-label", [fact.label, fact.value, fact.note].filter(Boolean).join(", "));
  const { line, area } = strokes(fact.spark, fact.bounds);
  card.line.setAttribute("d", line);
  card.area.setAttribute("d", area);
  card.line.style.stroke = color;
  card.area.style.fill = color;
}

export function render({ data, parentElement }) {
  let row = rows.get(parentElement);
  if (!row) rows.set(parentElement, (row = open(parentElement)));
  const palette = data.palette[themeOf(row.root)];
  for (const fact of data.cards) {
    let card = row.cards.get(fact.key);
    if (!card) row.cards.set(fact.key, (card = addCard(row.root, fact.key)));
    update(card, fact, palette);
  }
  row.root.dataset.ready = "true";
  return () => {
    row.root.remove();
    rows.delete(parentElement);
  };
}
