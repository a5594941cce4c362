// The live chart: one Plotly figure that is updated in place, so that zoom, legend and hover survive every tick.

import { decode, paint, themeOf } from "./wire.mjs";
import { loadPlotly } from "./library.mjs";
import { lay } from "./markers.mjs";

const NARROW_PX = 640;
const LEGEND_PX = 29; // one row of it, for which the layout has room
const SETTLE_MS = 250;
const BELOW_PX = 92; // the footer, and the head of the expander below
const charts = new WeakMap();
// Zoom and hidden traces by revision: they survive when Streamlit remounts a chart.
const viewStates = new Map();

function open(parent) {
  const root = document.createElement("div");
  root.className = "ss-plot";
  root.setAttribute("role", "figure");
  root.dataset.ready = "false";
  const canvas = root.appendChild(document.createElement("div"));
  canvas.className = "ss-plot-canvas";
  const footer = root.appendChild(document.createElement("p"));
  footer.className = "ss-plot-footer";
  parent.appendChild(root);
  return { root, canvas, footer, tick: 0, view: null, visible: {}, timer: 0, legendPx: LEGEND_PX };
}

function storeViewState(chart) {
  viewStates.set(chart.head.layout.uirevision, { view: chart.view, visible: chart.visible });
}

// Another revision, or a remounted chart: restore its zoom and hidden traces, and send the zoom to the server.
function restoreViewState(chart, revision) {
  const { view, visible } = viewStates.get(revision) ?? { view: null, visible: {} };
  Object.assign(chart, { view, visible });
  chart.root.dataset.view = view ? view.map(Math.round).join(",") : "";
  if (view) chart.send({ revision, range: view });
}

// The height of the window below the chart's top, so that the page needs no scrolling. More rows of the legend take
// nothing from the panels.
function heightFor(chart, head) {
  const height = head.height + chart.legendPx - LEGEND_PX;
  if (window.innerWidth < NARROW_PX || !head.fill) return height;
  const top = chart.canvas.getBoundingClientRect().top + scrollTop(chart.root);
  return Math.min(Math.max(window.innerHeight - top - BELOW_PX, height), 1100);
}

function scrollTop(element) {
  const main = element.closest("[data-testid=stMain]");
  return main ? main.scrollTop : window.scrollY;
}

// The view's controls are in the chart's top line where the window is wide, and the buttons of the chart left of
// them. A legend that reaches as far begins below them. Returns whether that changed.
function makeRoom(chart) {
  const legend = chart.canvas.querySelector("g.legend")?.getBoundingClientRect();
  const controls = document.querySelector(".st-key-view_bar > :first-child")?.getBoundingClientRect();
  const buttonsPx = chart.canvas.querySelector(".modebar")?.getBoundingClientRect().width ?? 0;
  const isCovered = Boolean(legend && controls && legend.right > controls.left - buttonsPx);
  const rightPx = controls && !isCovered ? chart.root.getBoundingClientRect().right - controls.left : 0;
  chart.root.style.setProperty("--ss-buttons-right", `${rightPx}px`);
  const wasCovered = chart.root.classList.contains("ss-plot-below");
  chart.root.classList.toggle("ss-plot-below", isCovered);
  return isCovered !== wasCovered;
}

async function draw(chart, Plotly) {
  await react(chart, Plotly);
  const hasMoved = makeRoom(chart);
  // How many rows the legend takes is known once it is drawn.
  const legend = Math.round(chart.canvas.querySelector("g.legend")?.getBBox().height ?? LEGEND_PX);
  if (legend === chart.legendPx && !hasMoved) return;
  chart.legendPx = legend;
  await react(chart, Plotly);
}

function react(chart, Plotly) {
  const head = chart.head;
  const palette = head.palette[themeOf(chart.root)];
  const narrow = chart.root.clientWidth < NARROW_PX;
  const layout = paint(head.layout, palette);
  layout.height = heightFor(chart, head);
  layout.width = chart.root.clientWidth;
  layout.autosize = false;
  layout.margin = { ...layout.margin, t: layout.margin.t + chart.legendPx - LEGEND_PX };
  if (narrow) layout.margin = { ...layout.margin, l: 50, r: 10 };
  const named = head.data.filter((trace) => trace.showlegend !== false).length;
  if (narrow || named > 9) layout.legend = { ...layout.legend, font: { ...layout.legend.font, size: 11 } };
  lay(layout, head.markers, palette, spanOf(chart, head), layout.width - layout.margin.l - layout.margin.r);
  if (chart.view) layout.xaxis = { ...layout.xaxis, range: [...chart.view], autorange: false };
  const data = paint(head.data, palette).map((trace) => ({ ...trace, visible: chart.visible[trace.name] ?? trace.visible }));
  const modebar = { displaylogo: false, displayModeBar: narrow ? false : "hover" };
  return Plotly.react(chart.canvas, data, layout, { ...head.config, ...modebar });
}

function spanOf(chart, head) {
  return chart.view ?? head.extent;
}

function report(chart) {
  const axis = chart.canvas._fullLayout?.xaxis;
  if (!axis) return;
  const view = axis.autorange ? null : axis.range.map(Number);
  if (JSON.stringify(view) === JSON.stringify(chart.view)) return;
  chart.view = view;
  storeViewState(chart);
  chart.root.dataset.view = view ? view.map(Math.round).join(",") : "";
  clearTimeout(chart.timer);
  chart.timer = setTimeout(() => chart.send?.({ revision: chart.head.layout.uirevision, range: view }), SETTLE_MS);
}

function listen(chart, Plotly) {
  chart.canvas.on("plotly_relayout", (change) => {
    if (Object.keys(change).some((key) => key.startsWith("xaxis"))) report(chart);
  });
  chart.canvas.on("plotly_restyle", () => {
    chart.visible = Object.fromEntries(chart.canvas._fullData.map((trace) => [trace.name, trace.visible]));
    storeViewState(chart);
  });
  let frame = 0;
  const again = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      const { width, height } = chart.canvas._fullLayout ?? {};
      if (!chart.root.clientWidth) return;
      const hasMoved = makeRoom(chart);
      const isSized = width === chart.root.clientWidth && Math.abs(height - heightFor(chart, chart.head)) <= 3;
      if (hasMoved || !isSized) draw(chart, Plotly);
    });
  };
  // Elements above the chart may grow or shrink, which changes the height left for it.
  chart.resizer = new ResizeObserver(again);
  chart.resizer.observe(chart.root);
  const page = chart.root.closest("[data-testid=stMainBlockContainer]");
  if (page) chart.resizer.observe(page);
  for (const control of document.querySelectorAll(".st-key-view_bar > *")) chart.resizer.observe(control);
  chart.onResize = again;
  window.addEventListener("resize", again);
}

function showError(chart, reason) {
  chart.canvas.textContent =
    `The chart cannot be drawn: the chart library did not load (${reason}). ` +
    "Reload the page; if it stays, restart the dashboard. The run itself is not affected.";
  chart.canvas.className = "ss-plot-sorry";
  chart.canvas.setAttribute("role", "alert");
}

export async function render({ data, parentElement, setStateValue }) {
  let chart = charts.get(parentElement);
  if (!chart) charts.set(parentElement, (chart = open(parentElement)));
  const head = decode(data);
  chart.send = (view) => setStateValue("view", view);
  chart.root.setAttribute("aria-label", head.label);
  if (chart.head?.layout.uirevision !== head.layout.uirevision) restoreViewState(chart, head.layout.uirevision);
  chart.head = head;
  const close = () => {
    chart.resizer?.disconnect();
    window.removeEventListener("resize", chart.onResize);
    clearTimeout(chart.timer);
    window.Plotly?.purge(chart.canvas);
    chart.root.remove();
    charts.delete(parentElement);
  };
  let Plotly;
  try {
    Plotly = await loadPlotly();
  } catch (error) {
    showError(chart, error.message);
    return close;
  }
  const started = performance.now();
  await draw(chart, Plotly);
  if (!chart.resizer) listen(chart, Plotly);
  chart.footer.textContent = head.footer;
  chart.tick += 1;
  Object.assign(chart.root.dataset, {
    ready: "true",
    tick: String(chart.tick),
    lastStep: head.last_step ?? "",
    bytes: String(data.byteLength),
    drawMs: (performance.now() - started).toFixed(1),
    markers: head.markers.map((marker) => `${marker.step}:${marker.label}`).join("|"),
  });
  return close;
}
