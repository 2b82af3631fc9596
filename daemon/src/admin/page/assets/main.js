// The page: routes in the fragment of the URL, keyboard, and what to draw after which event.

import { byId, refreshAges } from "./dom.js";
import { sample } from "./lines.js";
import { drawFooter, drawRate, drawRaw, drawStatus, drawStream, drawTiles, drawTimeline } from "./panels.js";
import { arrange, draw, drawDetailRate, pollDetail, refreshDetail, select, view } from "./services.js";
import { follow, state } from "./state.js";
import { isAddress, showTrace } from "./trace.js";
import { drawWall } from "./wall.js";

// ?kiosk: a display on a wall.
const kiosk = new URLSearchParams(location.search).has("kiosk");

const FIRST = "first-services";

// What changed since the last frame: a burst of events is drawn once.
const changed = new Set();
// The severities by which the table of services is arranged.
let arranged = state.severities;

function schedule(name) {
  if (changed.size === 0) requestAnimationFrame(drawChanged);
  changed.add(name);
}

function drawChanged() {
  const names = new Set(changed);
  changed.clear();
  if (names.has("services") || arranged !== state.severities) {
    arranged = state.severities;
    arrange();
    drawTiles();
    refreshDetail();
    // For tests, and for the developer tools of the browser: when the page first showed services.
    if (performance.getEntriesByName(FIRST).length === 0) performance.mark(FIRST);
  }
  if (names.has("status") || names.has("services")) drawStatus();
  if (names.has("rates")) {
    sample();
    if (!names.has("services")) draw();
    drawRate();
    drawDetailRate();
  }
  if (names.has("history")) {
    if (view.selected) refreshDetail();
    else drawTimeline();
  }
  if (kiosk) drawWall();
  if (names.has("apiservers") || names.has("sources") || names.has("limits")) drawFooter();
  drawStream();
}

// #service/NAME, #trace/ADDRESS?from=CLIENT, #status/SEVERITY, #problems, #search/TEXT
function route() {
  const fragment = decodeURIComponent(location.hash.slice(1));
  const [kind] = fragment.split("/", 1);
  const rest = fragment.slice(kind.length + 1);
  view.severity = kind === "status" ? rest : "";
  view.problemsOnly = kind === "problems";
  byId("columns").hidden = view.problemsOnly;
  if (kind === "search") setText(rest);
  const [address, query = ""] = kind === "trace" ? rest.split("?") : [""];
  showTrace(address, new URLSearchParams(query).get("from") ?? "host");
  if (kind === "service" && !rest.toLowerCase().includes(view.text)) setText("");
  select(kind === "service" ? rest : "");
  drawTimeline();
  drawStatus();
}

function setText(text) {
  byId("query").value = text;
  view.text = text.trim().toLowerCase();
}

byId("query").addEventListener("input", (event) => {
  view.text = event.target.value.trim().toLowerCase();
  arrange();
});

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("query").value.trim();
  if (isAddress(text)) location.hash = `trace/${text}`;
  else if (state.services.has(text)) location.hash = `service/${text}`;
  else location.hash = text ? `search/${text}` : "";
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target === byId("query");
  if (event.key === "Escape") {
    setText("");
    byId("query").blur();
    if (location.hash) location.hash = "";
    else arrange();
  } else if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("query").focus();
  } else if (event.key === "p" && !isTyping) {
    location.hash = view.problemsOnly ? "" : "problems";
  }
});

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.classList.contains("dark")
    || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  root.classList.remove("dark", "light");
  root.classList.add(isDark ? "light" : "dark");
});

byId("viewport").addEventListener("scroll", draw, { passive: true });
addEventListener("resize", () => {
  arrange();
  drawStatus();
});
addEventListener("hashchange", route);
setInterval(() => {
  sample();
  pollDetail();
  refreshAges();
  drawStream();
  if (kiosk) drawWall();
}, 500);

document.body.classList.toggle("kiosk", kiosk);
byId("wall").hidden = !kiosk;
drawRaw();
route();
follow(schedule);
