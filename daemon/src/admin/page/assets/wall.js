// A display on a wall (?kiosk): the verdict, the rate with its last ten minutes, the age of the last change, and the time.

import { byId, duration, element, replace } from "./dom.js";
import { rate } from "./services.js";
import { isStale, state, verdict } from "./state.js";

// The time that the line shows, and that between its points, in milliseconds.
const SHOWN = 600_000;
const EVERY = 2_000;
const [WIDTH, HEIGHT] = [600, 120];

// The sums of all services: the time, and the connections per second; null while they are not known.
const points = [];

export function drawWall() {
  const now = Date.now();
  const { text, level } = verdict();
  const known = !isStale() && state.counting;
  if (now - (points.at(-1)?.time ?? 0) >= EVERY) points.push({ time: now, value: known ? state.total : null });
  while (points[0].time < now - SHOWN) points.shift();
  const [last] = state.history;
  replace(byId("wall"),
    element("div", { class: `verdict ${level}` }, text),
    element("div", { class: "clock" }, new Date(now).toTimeString().slice(0, 5)),
    element("div", { class: "rate" }, element("h2", {}, "Connections per second"),
      element("strong", {}, known ? rate(state.total) : "–"),
      known && state.refused ? element("span", { class: "warning-text" }, ` ${rate(state.refused)} refused`) : null,
      line(now)),
    element("div", { class: "last" }, element("h2", {}, "Last change"),
      element("strong", {}, last ? duration((now - Date.parse(last.time)) / 1000) : "–"),
      last ? element("span", {}, ` ${last.what} ${last.service ?? "daemon"}`) : null));
}

function line(now) {
  const peak = Math.max(0, ...points.map((point) => point.value ?? 0));
  const most = Math.max(1, peak);
  const at = ({ time, value }) => `${WIDTH * (1 - (now - time) / SHOWN)} ${HEIGHT - (HEIGHT - 4) * (value / most) - 2}`;
  let path = "";
  points.forEach((point, index) => {
    if (point.value !== null) path += `${points[index - 1]?.value == null ? "M" : "L"}${at(point)}`;
  });
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-label": "The last ten minutes" });
  drawing.append(svg("path", { d: path }));
  return element("figure", {}, drawing,
    element("figcaption", {}, element("span", {}, "10 minutes ago"), element("span", {}, `at most ${rate(peak)}`), element("span", {}, "now")));
}
