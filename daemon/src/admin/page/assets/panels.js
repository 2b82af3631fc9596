// Everything around the table of services: header, problems, tiles, timeline, footer.

import { age, byId, copy, duration, element, replace } from "./dom.js";
import { severity, state } from "./state.js";
import { view } from "./services.js";

// Seconds without a message after which the page says that it is stale. The daemon sends one every two seconds.
const STALE = 5;
const PROBLEMS = 12;

export function drawStream() {
  const silent = (Date.now() - state.received) / 1000;
  const stale = !state.open || silent > STALE;
  document.querySelector("header").classList.toggle("stale", stale);
  let text = state.received ? `live · updated ${silent.toFixed(1)} s ago` : "connecting …";
  if (!state.open && state.lostSince) {
    const lost = duration((Date.now() - state.lostSince) / 1000);
    text = `nodelb has not responded for ${lost}; traffic continues with the last known backends`;
  } else if (stale && state.received) {
    text = `stale: no update for ${duration(silent)}`;
  }
  byId("stream").textContent = text;
  drawHeader(stale);
}

// What the daemon reported last is not known to be so while it is silent.
function drawHeader(stale) {
  if (!state.status) return;
  const { ready, version, time, uptime_seconds: uptime, kernel } = state.status;
  const up = uptime + Math.max(0, Date.now() - Date.parse(time)) / 1000;
  byId("about").textContent = [version, `up ${duration(up)}`, kernel?.release].filter(Boolean).join(" · ");
  const badge = byId("ready");
  badge.textContent = stale ? "NO ANSWER" : ready ? "READY" : "NOT READY";
  badge.className = `badge ${stale ? "unknown" : ready ? "ok" : "critical"}`;
}

export function drawStatus() {
  const { status } = state;
  if (!status) return;
  byId("node").textContent = status.node ?? "";
  document.title = `${status.problems.length ? `(${status.problems.length}) ` : ""}${status.node ?? ""} nodelb`;
  drawProblems(status.problems);
  drawTiles();
}

function drawProblems(problems) {
  const shown = view.problemsOnly ? problems : problems.slice(0, document.body.matches(".kiosk") ? PROBLEMS / 3 : PROBLEMS);
  const rest = problems.length - shown.length;
  replace(byId("problems"),
    element("h2", {}, problems.length ? `${problems.length} problem${problems.length > 1 ? "s" : ""}` : "Problems"),
    ...(problems.length ? shown.map(problemRow) : [element("div", { class: "ok-text" }, "No problems found.")]),
    rest > 0 ? element("button", { onclick: () => { location.hash = "problems"; } }, `${rest} more`) : null);
}

function problemRow(problem) {
  const level = problem.severity.toLowerCase();
  const isService = state.services.has(problem.object);
  return element("div", { class: `problem ${level}` },
    element("span", { class: `${level}-text`, title: problem.severity }, level === "critical" ? "✖" : level === "warning" ? "▲" : "●"),
    element("span", { class: "object", onclick: isService ? () => { location.hash = `service/${problem.object}`; } : undefined },
      problem.object),
    element("span", { class: "cause" }, problem.cause),
    age(problem.since),
    problem.command ? copy(problem.command) : element("span"));
}

export function drawTiles() {
  const count = { ok: 0, warning: 0, critical: 0 };
  let selectable = 0;
  let backends = 0;
  for (const row of state.services.values()) {
    count[severity(row)] += 1;
    selectable += row.selectable;
    backends += row.backends;
  }
  const tile = (label, level, number) => element("button", {
    "aria-pressed": String(view.severity === level),
    onclick: () => { location.hash = level && view.severity !== level ? `status/${level}` : ""; },
  }, element("strong", { class: number && level ? `${level}-text` : undefined }, number), ` ${label}`);
  replace(byId("tiles"),
    tile(state.services.size === 1 ? "service" : "services", "", state.services.size), tile("OK", "ok", count.ok),
    tile("warning", "warning", count.warning), tile("critical", "critical", count.critical),
    element("span", { class: "note" }, `${selectable} of ${backends} backends usable`));
}

export function drawTimeline() {
  const records = view.selected ? state.history.filter((record) => record.service === view.selected) : state.history;
  byId("timeline").querySelector("h2").textContent = view.selected ? `Timeline of ${view.selected}` : "Timeline";
  const shown = records.slice(0, 200).map(record);
  replace(byId("records"), ...(shown.length ? shown : [element("li", {}, "No changes are recorded.")]));
}

const LEVEL = { Held: "warning", LastResort: "critical", Emptied: "critical", Refused: "critical", Lost: "critical", Failed: "critical" };

function record(entry) {
  const backends = [...(entry.added ?? []).map((name) => `+${name}`), ...(entry.removed ?? []).map((name) => `−${name}`),
    ...(entry.held ?? []).map((name) => `=${name}`)];
  const cause = [entry.object, entry.writer, entry.resource_version && `rv ${entry.resource_version}`,
    typeof entry.to_kernel === "number" && `kernel ${micros(entry.to_kernel)}`].filter(Boolean);
  return element("li", { onclick: entry.service ? () => { location.hash = `service/${entry.service}`; } : undefined },
    element("span", { class: `what ${LEVEL[entry.what] ?? "dim"}-text` }, entry.what),
    element("span", { class: "age", title: entry.time }, clock(entry.time)), " ",
    element("span", {}, entry.service ?? "daemon"),
    backends.length ? element("div", { class: "more" }, short(backends)) : null,
    cause.length ? element("div", { class: "more" }, cause.join(" · ")) : null,
    !entry.service && entry.detail ? element("div", { class: "more" }, entry.detail) : null);
}

const short = (list) => (list.length > 6 ? `${list.slice(0, 6).join(" ")} and ${list.length - 6} more` : list.join(" "));
const micros = (seconds) => (seconds < 0.001 ? `${Math.round(seconds * 1e6)} µs` : `${(seconds * 1000).toFixed(1)} ms`);

function clock(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toTimeString().slice(0, 8) : date.toISOString().slice(0, 16).replace("T", " ");
}

export function drawFooter() {
  const apiservers = state.apiservers.map((row) => element("div", {},
    element("span", { class: row.state === "Failed" ? "critical-text" : "ok-text" }, row.state === "Failed" ? "✖ " : "✓ "),
    `${row.address} ${row.in_use ? "in use, " : ""}${row.from ?? ""} `, row.error ? element("span", { class: "critical-text" }, row.error) : null));
  const sources = state.sources.map((row) => {
    const problems = row.problems ?? [];
    const bad = problems.length > 0 || !["Ok", "OK", "Synced"].includes(row.state);
    return element("div", {}, element("span", { class: bad ? "critical-text" : "ok-text" }, bad ? "✖ " : "✓ "),
      `${row.path || row.source}: ${row.services} ${row.services === 1 ? "service" : "services"}`, problems.length ? element("div", { class: "critical-text" }, problems[0]) : null);
  });
  const limits = state.limits.filter((row) => row.used !== null).map((row) => element("div", {},
    element("meter", { min: 0, max: row.limit, high: row.limit * 0.8, value: row.used }), ` ${row.map} `,
    element("span", { class: "age" }, `${percent(row.used / row.limit)} of ${row.limit}`)));
  replace(byId("footer"),
    panel("API servers", apiservers, "Kubernetes is not configured."), panel("Sources", sources, "none"), panel("Maps", limits, "none"));
}

const percent = (part) => (part > 0 && part < 0.001 ? "< 0.1 %" : `${(part * 100).toFixed(1)} %`);
const panel = (title, rows, none) =>
  element("div", {}, element("h2", {}, title), ...(rows.length ? rows : [element("span", { class: "age" }, none)]));

const RAW = ["status", "services", "frontends", "backends", "history", "diff", "maps", "sources", "apiservers", "devices",
  "connections", "counters", "config", "readyz", "healthz", "metrics", "openapi.json"];

export function drawRaw() {
  replace(byId("raw"), "raw: ", ...RAW.map((name) => element("a", { href: `/${name}` }, `/${name}`)));
}
