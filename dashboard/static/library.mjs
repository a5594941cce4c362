// What every page has: plotly.js, loaded once so that the first chart does not wait for it, and a cure for blank pages.

const NAME = "plotly-basic-4.1.1.min.js"; // The version is in the name, so that a browser never uses an old cached one.
// Streamlit 1.67 leaves a page blank when a tick of the page left reaches the tab while the next one is drawn.
const BLANKED = "Bad delta path index";
const RELOADED = "stepscope-reloaded-ms";
const RELOAD_EVERY_MS = 10_000;
let library;

window.addEventListener("error", (event) => {
  const last = Number(sessionStorage.getItem(RELOADED) ?? 0);
  if (!event.message.includes(BLANKED) || Date.now() - last < RELOAD_EVERY_MS) return;
  sessionStorage.setItem(RELOADED, String(Date.now()));
  location.reload();
});

export function loadPlotly() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(NAME, import.meta.url).href;
    script.onload = () => (window.Plotly ? resolve(window.Plotly) : reject(new Error("no Plotly in it")));
    script.onerror = () => reject(new Error(`${NAME} was not served`));
    document.head.appendChild(script);
  });
  return library;
}

export function render() {
  loadPlotly().catch(() => {}); // The chart reports the error.
}
