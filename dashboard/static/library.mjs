// Loads plotly.js once a page, on whichever page that is, so that it is there when the first chart comes.

let library;

export function loadPlotly(name) {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(name, import.meta.url).href;
    script.onload = () => (window.Plotly ? resolve(window.Plotly) : reject(new Error("no Plotly in it")));
    script.onerror = () => reject(new Error(`${name} was not served`));
    document.head.appendChild(script);
  });
  return library;
}

export function render({ data }) {
  loadPlotly(data.library).catch(() => {}); // The chart says so where it is missed.
}
