// The connections per second of the last ten minutes: of the node, and of each service that had some.

import { isStale, state } from "./state.js";

// The time that a line shows, and that between its points, in milliseconds.
export const SHOWN = 600_000;
const EVERY = 2_000;
// The name of the sum of all services.
export const NODE = "";

// The times of the points, which no change of the clock moves, and the values of each name, of which the last ones belong to the last times. A value is null
// while it is not known, and earlier ones than the first of a name are 0.
const times = [];
const series = new Map([[NODE, []]]);

// Takes a point if it is time.
export function sample() {
  const now = performance.now();
  if (now - (times.at(-1) ?? -EVERY) < EVERY) return;
  times.push(now);
  const known = !isStale() && state.counting;
  for (const name of state.rates.keys()) if (!series.has(name)) series.set(name, []);
  for (const [name, values] of series) {
    const value = name === NODE ? state.total : state.rates.get(name)?.per_second ?? 0;
    values.push(known ? value : null);
  }
  while (times[0] < now - SHOWN) {
    times.shift();
    for (const values of series.values()) if (values.length > times.length) values.shift();
  }
  // A service that had none for ten minutes has no line.
  for (const [name, values] of series) if (name !== NODE && !values.some(Boolean)) series.delete(name);
}

// The largest value of the last ten minutes.
export const peak = (name) => Math.max(0, ...(series.get(name) ?? []).map((value) => value ?? 0));

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A drawing of this size in pixels; undefined if there was no connection.
export function line(name, width, height) {
  const values = series.get(name);
  if (!values?.some(Boolean)) return undefined;
  const now = performance.now();
  const most = Math.max(1, peak(name));
  // Of the points that share a pixel, the largest.
  const columns = new Map();
  times.slice(-values.length).forEach((time, index) => {
    const x = Math.round(width * (1 - (now - time) / SHOWN));
    const value = values[index];
    columns.set(x, value === null ? columns.get(x) ?? null : Math.max(columns.get(x) ?? 0, value));
  });
  let path = "";
  let joins = false;
  for (const [x, value] of columns) {
    if (value !== null) path += `${joins ? "L" : "M"}${x} ${(height - 1 - (height - 2) * (value / most)).toFixed(1)}`;
    joins = value !== null;
  }
  const drawing = svg("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": "The connections per second of the last ten minutes" });
  drawing.append(svg("path", { d: path }));
  return drawing;
}
