// Loads plotly.js once a page, on whichever page that is, so that it is there when the first chart comes.

const NAME = "plotly-basic-4.1.1.min.js"; // Its version is in its name, so that a browser never keeps an old one.
let library;

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
  loadPlotly().catch(() => {}); // The chart says so where it is missed.
}
