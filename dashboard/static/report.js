// Draws the charts of a report in the colors of the reader's theme, and in the light ones on paper.

(() => {
  const { figures, palettes } = JSON.parse(document.getElementById("data").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW_PX = 640;
  const PAPER_PX = 680;

  function paint(value, palette) {
    if (typeof value === "string") return value.startsWith("@") ? (palette[value.slice(1)] ?? value) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => paint(item, palette));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, paint(item, palette)]));
  }

  function draw(widthPx) {
    const palette = palettes[dark.matches && !widthPx ? "dark" : "light"];
    return Promise.all(charts.map((element, at) => {
      const width = widthPx ?? element.clientWidth;
      const narrow = width < NARROW_PX;
      const layout = paint(figures[at].layout, palette);
      const more = narrow && layout.showlegend ? 58 : 0; // The legend takes more lines there.
      layout.margin = { ...layout.margin, t: layout.margin.t + more };
      Object.assign(layout, { width, height: figures[at].height + more, autosize: false });
      return Plotly.react(element, paint(figures[at].data, palette), layout, { ...figures[at].config, displayModeBar: false });
    }));
  }

  let frame = 0;
  const again = () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => draw());
  };
  draw().then(() => { document.body.dataset.ready = "true"; });
  dark.addEventListener("change", again);
  addEventListener("resize", again);
  addEventListener("beforeprint", () => draw(PAPER_PX));
  addEventListener("afterprint", again);
})();
