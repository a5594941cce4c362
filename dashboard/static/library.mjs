// Loads plotly.js once per page load, on any page, so that the first chart does not wait for it.

const NAME = "plotly-basic-4.1.1.min.js"; // The version is in the name, so that a browser never uses an old cached one.
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
  loadPlotly().catch(() => {}); // The chart reports the error.
}
