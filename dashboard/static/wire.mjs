// Decodes the format of dashboard/wire.py: a little-endian u32 with the length of a JSON head, the head padded to
// eight bytes, then the arrays that the head refers to as {"$a": [type, offset, length]}.

const ARRAYS = { f4: Float32Array, f8: Float64Array };

export function decode(bytes) {
  const buffer = bytes.slice().buffer;
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  return fill(head, ([type, offset, count]) => new ARRAYS[type](buffer, start + offset, count));
}

function fill(value, array) {
  if (Array.isArray(value)) return value.map((item) => fill(item, array));
  if (value === null || typeof value !== "object") return value;
  if (value.$a) return array(value.$a);
  for (const key of Object.keys(value)) value[key] = fill(value[key], array);
  return value;
}

// Streamlit sets its theme as CSS variables around a component; a dark theme is one with a dark background.
export function themeOf(element) {
  const probe = document.createElement("span");
  probe.style.color = "var(--st-background-color, #fff)";
  element.appendChild(probe);
  const [r, g, b] = (getComputedStyle(probe).color.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  probe.remove();
  return 0.299 * r + 0.587 * g + 0.114 * b < 128 ? "dark" : "light";
}

// Colors are sent as "@name" and replaced by the palette's here, so that a theme switch needs no new data.
export function paint(value, palette) {
  if (typeof value === "string") return value[0] === "@" ? palette[value.slice(1)] ?? value : value;
  if (Array.isArray(value)) return value.map((item) => paint(item, palette));
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  const painted = {};
  for (const key of Object.keys(value)) painted[key] = paint(value[key], palette);
  return painted;
}
