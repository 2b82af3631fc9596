// A display on a wall (?kiosk): the verdict, the rate with its last ten minutes, the age of the last change, and the time.

import { byId, duration, element, replace } from "./dom.js";
import { NODE, line, peak } from "./lines.js";
import { rate } from "./services.js";
import { isStale, state, verdict } from "./state.js";

export function drawWall() {
  const now = Date.now();
  const { text, level } = verdict();
  const known = !isStale() && state.counting;
  const [last] = state.history;
  replace(byId("wall"),
    element("div", { class: `verdict ${level}` }, text),
    element("div", { class: "clock" }, new Date(now).toTimeString().slice(0, 5)),
    element("div", { class: "rate" }, element("h2", {}, "Connections per second"),
      element("strong", {}, known ? rate(state.total) : "–"),
      known && state.refused ? element("span", { class: "warning-text" }, ` ${rate(state.refused)} refused`) : null,
      element("figure", {}, line(NODE, 600, 120) ?? element("div", { class: "line" }),
        element("figcaption", {}, element("span", {}, "10 minutes ago"), element("span", {}, `at most ${rate(peak(NODE))}`), element("span", {}, "now")))),
    element("div", { class: "last" }, element("h2", {}, "Last change"),
      element("strong", {}, last ? duration((now - Date.parse(last.time)) / 1000) : "–"),
      last ? element("span", {}, ` ${last.what} ${last.service ?? "daemon"}`) : null));
}
